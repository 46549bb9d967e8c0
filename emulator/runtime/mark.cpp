// Reaches marks and recycles them.
#include "emulator/runtime/mark.h"

#include <algorithm>
#include <chrono>

#include "emulator/runtime/parking.h"

namespace tessera::emulator {

void Mark::reach() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  time.store(std::chrono::duration<double, std::milli>(now).count(), std::memory_order_relaxed);
  reached.store(1, std::memory_order_release);
  wake_all(reached);
}

MarkReference MarkPool::take(const std::string* stream_name) {
  // Marks are reached in the order in which they were taken, so the next one in the ring is the
  // most likely to be free. A few are tried, because events may hold some of them indefinitely.
  constexpr std::size_t tries = 4;
  Mark* mark = nullptr;
  for (std::size_t i = 0; i < std::min(tries, marks_.size()) && mark == nullptr; ++i) {
    next_ = (next_ + 1) % marks_.size();
    if (marks_[next_].references.load(std::memory_order_relaxed) == 0) mark = &marks_[next_];
  }
  if (mark == nullptr) mark = &marks_.emplace_back();
  mark->reached.store(0, std::memory_order_relaxed);
  mark->stream_name.store(stream_name, std::memory_order_relaxed);
  return MarkReference(mark);
}

// Acquires, unlike take(): the pool may be destroyed next, after other threads' last reads.
bool MarkPool::is_unused() const {
  return std::all_of(marks_.begin(), marks_.end(), [](const Mark& mark) {
    return mark.references.load(std::memory_order_acquire) == 0;
  });
}

}  // namespace tessera::emulator
