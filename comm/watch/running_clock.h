// Time for which this process ran.
#pragma once

#include <algorithm>
#include <chrono>

namespace tessera::comm {

// Counts the time between the looks of a thread that looks often, each step at most `longest`: a
// process that was stopped or got no core must not take that time for silence of other ranks.
class RunningClock {
 public:
  explicit RunningClock(std::chrono::milliseconds longest) : longest_(longest) {}

  // Adds the time since the last look and returns the sum.
  std::chrono::nanoseconds look() {
    const auto now = std::chrono::steady_clock::now();
    time_ += std::min<std::chrono::nanoseconds>(now - looked_at_, longest_);
    looked_at_ = now;
    return time_;
  }
  // At the last look.
  [[nodiscard]] std::chrono::nanoseconds time() const { return time_; }

 private:
  std::chrono::milliseconds longest_;
  std::chrono::nanoseconds time_{0};
  std::chrono::steady_clock::time_point looked_at_ = std::chrono::steady_clock::now();
};

}  // namespace tessera::comm
