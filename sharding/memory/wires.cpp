// Formats of data that travels, and rounding to them.
#include "sharding/memory/wires.h"

#include "base/error.h"
#include "engine/device/launch.h"

namespace tessera {
namespace {

bool is_narrower(WireFormat wire, DType dtype) {
  return wire != WireFormat::same && is_floating(dtype) && dtype != float64 &&
         wire_element_bytes(wire) < size_of(dtype);
}

void round_in_place(Device device, WireFormat wire, std::byte* memory, std::int64_t n,
                    DType dtype) {
  TESSERA_LAUNCH(
      device, wire,
      {kernels::WireStep::round, wire, memory, memory, nullptr, nullptr, n, dtype, dtype});
}

}  // namespace

void check_wires(const ShardingOptions& options) {
  const WireFormat wire = options.reduce_wire;
  TESSERA_CHECK(wire == WireFormat::same || wire == WireFormat::bf16 || wire == WireFormat::int8,
                ErrorCode::configuration, "gradients travel as same, bf16 or int8, not as {}",
                name_of(wire));
}

WireFormat gather_wire_of(const UnitLayout::Segment& segment, const ShardingOptions& options) {
  const bool kept = options.param_dtype && segment.compute_dtype != *options.param_dtype;
  return !kept && is_narrower(options.gather_wire, segment.compute_dtype) ? options.gather_wire
                                                                          : WireFormat::same;
}

WireFormat reduce_wire_of(DType gradient, const ShardingOptions& options) {
  return is_narrower(options.reduce_wire, gradient) ? options.reduce_wire : WireFormat::same;
}

std::vector<comm::GatheredRange> ranges_to_gather(const UnitLayout& layout, bool frozen_too,
                                                  const ShardingOptions& options) {
  std::vector<comm::GatheredRange> ranges;
  for (const auto& segment : layout.segments()) {
    if (!frozen_too && !segment.trainable) continue;
    ranges.push_back({segment.byte_offset, segment.bytes(),
                      layout.shards() == 1 ? WireFormat::same : gather_wire_of(segment, options),
                      segment.compute_dtype});
  }
  return ranges;
}

void round_share(Device device, std::byte* buffer, const std::vector<comm::GatheredRange>& ranges,
                 int shards, int shard) {
  for (const comm::GatheredRange& range : ranges) {
    if (range.wire == WireFormat::same) continue;
    const std::size_t share = range.bytes / static_cast<std::size_t>(shards);
    round_in_place(device, range.wire,
                   buffer + range.first + static_cast<std::size_t>(shard) * share,
                   static_cast<std::int64_t>(share / size_of(range.dtype)), range.dtype);
  }
}

void round_gradient(Device device, std::byte* gradient, std::int64_t elements, DType dtype,
                    WireFormat wire) {
  if (wire != WireFormat::same) round_in_place(device, wire, gradient, elements, dtype);
}

}  // namespace tessera
