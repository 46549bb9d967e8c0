// Data over NCCL, in its own type or in fewer bits: encoded by the sender, decoded by the receiver.
#include <algorithm>

#include "comm/nccl/communicator.h"
#include "comm/scratch.h"
#include "engine/device/launch.h"

namespace tessera::comm {
namespace {

std::size_t round_up_wire(std::size_t bytes) {
  return (bytes + nccl_scratch_alignment - 1) / nccl_scratch_alignment * nccl_scratch_alignment;
}

// Converts `n` elements of `dtype` to or from their encoded form: the payload, and the scales
// behind it.
void convert(Device device, kernels::WireStep step, WireFormat format, const std::byte* in,
             std::byte* out, std::byte* encoded, std::int64_t n, DType dtype) {
  TESSERA_LAUNCH(
      device, wire,
      {step, format, in, out, encoded, encoded + wire_payload_bytes(format, n), n, dtype, dtype});
}

}  // namespace

std::size_t NcclCommunicator::move_scratch(const std::vector<Move>& moves, WireFormat wire) {
  if (wire == WireFormat::same) return 0;
  std::size_t bytes = 0;
  for (const Move& move : moves) bytes += round_up_wire(wire_bytes(wire, move.count));
  return bytes;
}

void NcclCommunicator::move(const std::vector<Move>& moves, DType dtype, WireFormat wire,
                            std::byte* encoded) {
  std::vector<NcclChannel::Transfer> transfers;
  if (wire == WireFormat::same) {
    for (const Move& one : moves) {
      const std::size_t bytes = static_cast<std::size_t>(one.count) * size_of(dtype);
      transfers.push_back({one.peer, one.send, one.receive, bytes});
    }
    return channel_->transfer(transfers, current_queue(device()));
  }
  std::byte* place = encoded;
  for (const Move& one : moves) {
    const std::size_t bytes = wire_bytes(wire, one.count);
    if (one.send != nullptr) {
      convert(device(), kernels::WireStep::encode, wire, one.send, nullptr, place, one.count,
              dtype);
      transfers.push_back({one.peer, place, nullptr, bytes});
    } else {
      transfers.push_back({one.peer, nullptr, place, bytes});
    }
    place += round_up_wire(bytes);
  }
  channel_->transfer(transfers, current_queue(device()));
  place = encoded;
  for (const Move& one : moves) {
    if (one.receive != nullptr) {
      convert(device(), kernels::WireStep::decode, wire, nullptr, one.receive, place, one.count,
              dtype);
    }
    place += round_up_wire(wire_bytes(wire, one.count));
  }
}

// Every rank decodes all shards, including its own: all have the same bits.
void NcclCommunicator::gather_as_wire(const NcclBuffer& buffer,
                                      const std::vector<GatheredRange>& ranges) {
  const auto ranks = static_cast<std::size_t>(size());
  std::byte* place = scratch(nccl_all_gather_scratch(ranges, size()));
  std::vector<NcclChannel::Gathered> parts;
  struct Encoded {
    std::byte* plain;
    std::byte* place;
    std::int64_t count;
    std::size_t share_bytes, wire_bytes;
    WireFormat wire;
    DType dtype;
  };
  std::vector<Encoded> encoded;
  for (const GatheredRange& range : ranges) {
    const std::size_t share = range.bytes / ranks;
    std::byte* const plain = buffer.data() + range.first;
    if (range.wire == WireFormat::same) {
      parts.push_back({plain, share});
      continue;
    }
    const auto count = static_cast<std::int64_t>(share / size_of(range.dtype));
    const std::size_t bytes = tessera::wire_bytes(range.wire, count);
    const auto here = static_cast<std::size_t>(rank());
    convert(device(), kernels::WireStep::encode, range.wire, plain + here * share, nullptr,
            place + here * bytes, count, range.dtype);
    parts.push_back({place, bytes});
    encoded.push_back({plain, place, count, share, bytes, range.wire, range.dtype});
    place += round_up_wire(ranks * bytes);
  }
  channel_->all_gather(parts, current_queue(device()));
  for (const Encoded& one : encoded) {
    for (std::size_t r = 0; r < ranks; ++r) {
      convert(device(), kernels::WireStep::decode, one.wire, nullptr,
              one.plain + r * one.share_bytes, one.place + r * one.wire_bytes, one.count,
              one.dtype);
    }
  }
}

}  // namespace tessera::comm
