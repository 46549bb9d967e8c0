// Segments, slots and shards.
#include "sharding/memory/layout.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/error.h"

namespace tessera {
namespace {

constexpr std::size_t share_alignment = 256;  // bytes of a shard's part of a segment
// Elements at whose multiples a segment begins in buffers of gradients: 256 bytes at 16 bits.
constexpr std::int64_t gradient_alignment = 128;

template <class T>
T round_up(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

std::string unit_title(std::string_view name) {
  return name.empty() ? "the root unit" : "unit " + std::string(name);
}

UnitLayout::UnitLayout(std::vector<ParameterSpec> parameters, int shards) : shards_(shards) {
  TESSERA_REQUIRE(shards > 0, "a unit is cut into {} shards", shards);
  slots_.resize(parameters.size());
  for (const bool trainable : {true, false}) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      ParameterSpec& spec = parameters[i];
      if (spec.trainable != trainable) continue;
      auto found = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& segment) {
        return segment.compute_dtype == spec.compute_dtype &&
               segment.master_dtype == spec.master_dtype && segment.trainable == spec.trainable &&
               segment.apart == spec.apart && segment.block == spec.block;
      });
      if (found == segments_.end()) {
        segments_.push_back({spec.compute_dtype, spec.master_dtype, trainable, spec.apart,
                             spec.block, 0, 0, 0, 0, 0});
        found = std::prev(segments_.end());
      }
      const std::int64_t first = round_up(found->elements, spec.block);
      const std::int64_t count = spec.shape.elements();
      found->elements = first + count;
      slots_[i] = {std::move(spec), static_cast<int>(found - segments_.begin()), {first, count}};
    }
  }
  for (Segment& segment : segments_) {
    const std::int64_t granule = std::lcm(
        static_cast<std::int64_t>(share_alignment / size_of(segment.compute_dtype)), segment.block);
    segment.elements =
        round_up(std::max<std::int64_t>(segment.elements, 1), granule * std::int64_t{shards});
    segment.share = segment.elements / shards;
    segment.byte_offset = bytes_;
    bytes_ += segment.bytes();
    if (!segment.trainable) continue;
    segment.gradient_offset = gradient_elements_;
    gradient_elements_ += round_up(segment.elements, gradient_alignment);
    segment.local_gradient_offset = local_gradient_elements_;
    local_gradient_elements_ += round_up(segment.share, gradient_alignment);
  }
  find_gaps();
}

ElementRange UnitLayout::local(int segment, int shard) const {
  const std::int64_t share = segments_[static_cast<std::size_t>(segment)].share;
  return {shard * share, share};
}

ElementRange UnitLayout::local_of(const Slot& slot, int shard) const {
  ElementRange range = intersect(local(slot.segment, shard), slot.range);
  range.first = range.count == 0 ? 0 : range.first - slot.range.first;
  return range;
}

DType UnitLayout::gradient_dtype() const {
  std::optional<DType> widest;
  for (const Segment& segment : segments_) {
    if (!segment.trainable || segment.compute_dtype == widest) continue;
    if (widest && size_of(*widest) == size_of(segment.compute_dtype)) {
      widest = float32;
    } else if (!widest || size_of(*widest) < size_of(segment.compute_dtype)) {
      widest = segment.compute_dtype;
    }
  }
  return widest.value_or(float32);
}

void UnitLayout::find_gaps() {
  std::vector<ElementRange> covered;
  for (const Slot& slot : slots_) {
    const Segment& segment = segments_[static_cast<std::size_t>(slot.segment)];
    if (segment.trainable)
      covered.push_back({segment.gradient_offset + slot.range.first, slot.range.count});
  }
  std::sort(covered.begin(), covered.end(),
            [](const ElementRange& a, const ElementRange& b) { return a.first < b.first; });
  std::int64_t position = 0;
  for (const ElementRange& range : covered) {
    if (range.first > position) gradient_gaps_.push_back({position, range.first - position});
    position = std::max(position, range.end());
  }
  if (position < gradient_elements_)
    gradient_gaps_.push_back({position, gradient_elements_ - position});
}

}  // namespace tessera
