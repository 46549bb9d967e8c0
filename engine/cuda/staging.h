// A ring of page-locked memory through which a queue takes what the host may change at once.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "engine/device/queue.h"

namespace tessera::cuda {

// Parts are used in order and come free in order. Used by one thread at a time.
class StagingRing {
 public:
  static constexpr std::size_t largest_part = std::size_t{2} << 20;

  // Memory of `bytes` (at most largest_part) that no copy reads any more; waits for the oldest
  // copies when the ring is full. Made on first use.
  std::byte* take(std::size_t bytes);
  // Copies from the part taken last are in the queue before `point`.
  void in_use_until(PointHandle point);

 private:
  static constexpr std::size_t ring_bytes = 4 * largest_part;
  struct Part {
    std::size_t begin, end;
    PointHandle point;  // null for the part taken last
  };
  void wait_for_oldest();

  std::shared_ptr<std::byte> memory_;
  std::deque<Part> parts_;  // in the order of taking
  std::size_t next_ = 0;
};

}  // namespace tessera::cuda
