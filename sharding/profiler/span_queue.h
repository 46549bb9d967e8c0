// Spans on their way from a side stream's worker to the rank's thread: one thread writes, one
// reads, neither waits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/device/queue.h"
#include "sharding/profiler/span.h"

namespace tessera {

// A span as it was recorded. On a GPU its moments are the host's; the points of the queue have the
// device's times.
struct RawSpan {
  Span span;
  PointHandle begin, end;
  bool of_step = true;  // it began before the step's end
};

class SpanQueue {
 public:
  explicit SpanQueue(std::size_t capacity) : slots_(capacity) {}

  // For the writer. A span without room is only counted.
  void push(RawSpan span) {
    const std::uint64_t written = written_.load(std::memory_order_relaxed);
    if (written - taken_.load(std::memory_order_acquire) == slots_.size()) {
      lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    slots_[written % slots_.size()] = std::move(span);
    written_.store(written + 1, std::memory_order_release);
  }

  // For the reader.
  template <class Take>
  void drain(const Take& take) {
    const std::uint64_t end = written_.load(std::memory_order_acquire);
    std::uint64_t next = taken_.load(std::memory_order_relaxed);
    for (; next < end; ++next) {
      take(std::move(slots_[next % slots_.size()]));
      taken_.store(next + 1, std::memory_order_release);
    }
  }
  [[nodiscard]] bool is_filling() const {
    return written_.load(std::memory_order_relaxed) - taken_.load(std::memory_order_relaxed) >
           slots_.size() / 2;
  }
  [[nodiscard]] std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  std::vector<RawSpan> slots_;
  alignas(64) std::atomic<std::uint64_t> written_{0};
  alignas(64) std::atomic<std::uint64_t> taken_{0};
  std::atomic<std::uint64_t> lost_{0};
};

}  // namespace tessera
