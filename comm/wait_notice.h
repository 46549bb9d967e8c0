// Prints a notice when a rank or node waits long for others.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace tessera::comm {

class WaitNotice {
 public:
  static constexpr std::chrono::milliseconds patience{5'000};

  // The waiting begins now, and ends after `limit` at the latest.
  explicit WaitNotice(std::chrono::milliseconds limit) : limit_(limit) {}

  // Must be called regularly. After `patience` it prints one line to stderr: the text of `waiting`,
  // such as "rank 1 waits for rank 0 at 127.0.0.1 port 29500", and the end of the wait.
  void look(const std::function<std::string()>& waiting);
  // How long a wait may sleep so that the line is not late.
  [[nodiscard]] std::chrono::milliseconds longest_sleep(std::chrono::milliseconds wanted) const;

 private:
  using Clock = std::chrono::steady_clock;

  std::chrono::milliseconds limit_;
  Clock::time_point began_ = Clock::now();
  bool said_ = false;
};

}  // namespace tessera::comm
