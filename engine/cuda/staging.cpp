// The staging ring.
#include "engine/cuda/staging.h"

#include "base/error.h"
#include "engine/cuda/pinned.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t part_alignment = 256;

}  // namespace

StagingRing::StagingRing() : memory_(pinned_pool()->allocate(ring_bytes)) {}

void StagingRing::wait_for_oldest() {
  // This may throw a fault of earlier kernels; the part is free all the same.
  const PointHandle point = std::move(parts_.front().point);
  parts_.pop_front();
  if (point) point->synchronize();
}

std::byte* StagingRing::take(std::size_t bytes) {
  TESSERA_REQUIRE(bytes <= largest_part, "a part of {} bytes in a staging ring of {}-byte parts",
                  bytes, largest_part);
  if (next_ + bytes > ring_bytes) {
    // Skips the rest of the ring: its parts, from the previous lap, are the oldest.
    while (!parts_.empty() && parts_.front().begin >= next_) wait_for_oldest();
    next_ = 0;
  }
  const std::size_t begin = next_;
  const std::size_t end = begin + (bytes + part_alignment - 1) / part_alignment * part_alignment;
  while (!parts_.empty() && parts_.front().point && parts_.front().point->reached()) {
    parts_.pop_front();
  }
  while (!parts_.empty() && parts_.front().begin < end && begin < parts_.front().end) {
    wait_for_oldest();
  }
  parts_.push_back({begin, end, nullptr});
  next_ = end;
  return memory_.get() + begin;
}

void StagingRing::in_use_until(PointHandle point) {
  parts_.back().point = std::move(point);
}

}  // namespace tessera::cuda
