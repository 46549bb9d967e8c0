// The kept parts of freed parameters.
#include "sharding/memory/reshard.h"

#include "engine/device/queue.h"

namespace tessera {
namespace {

template <class Copy>
void for_parts(const UnitLayout& layout, int ranks, int rank, const Copy& copy) {
  std::size_t at = 0;
  for (const UnitLayout::Segment& segment : layout.segments()) {
    const std::size_t bytes = segment.bytes() / static_cast<std::size_t>(ranks);
    copy(segment.byte_offset + static_cast<std::size_t>(rank) * bytes, at, bytes);
    at += bytes;
  }
}

}  // namespace

std::size_t resharded_bytes(const UnitLayout& layout, int ranks) {
  return layout.bytes() / static_cast<std::size_t>(ranks);
}

void keep_resharded(const UnitLayout& layout, int ranks, int rank, const std::byte* flat,
                    std::byte* part, Device device) {
  for_parts(layout, ranks, rank, [&](std::size_t in_flat, std::size_t in_part, std::size_t bytes) {
    current_queue(device).copy(part + in_part, flat + in_flat, bytes);
  });
}

void restore_resharded(const UnitLayout& layout, int ranks, int rank, const std::byte* part,
                       std::byte* flat, Device device) {
  for_parts(layout, ranks, rank, [&](std::size_t in_flat, std::size_t in_part, std::size_t bytes) {
    current_queue(device).copy(flat + in_flat, part + in_part, bytes);
  });
}

}  // namespace tessera
