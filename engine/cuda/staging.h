// A ring of page-locked memory. A queue copies host data through it, so the host may change its
// data at once.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "engine/device/queue.h"

namespace tessera::cuda {

// Parts are used and released in order. One thread at a time may use the ring.
class StagingRing {
 public:
  static constexpr std::size_t largest_part = std::size_t{2} << 20;

  // Allocates the ring, because an allocation of page-locked memory later may wait for the whole
  // device, where a collective waits for another rank.
  StagingRing();
  // Memory of `bytes` (at most largest_part) that no copy reads any more. Waits for the oldest
  // copies if the ring is full.
  std::byte* take(std::size_t bytes);
  // States that copies from the last part taken are in the queue before `point`.
  void in_use_until(PointHandle point);

 private:
  static constexpr std::size_t ring_bytes = 4 * largest_part;
  struct Part {
    std::size_t begin, end;
    PointHandle point;  // null for the part taken last
  };
  void wait_for_oldest();

  std::shared_ptr<std::byte> memory_;
  std::deque<Part> parts_;  // in the order of take()
  std::size_t next_ = 0;
};

}  // namespace tessera::cuda
