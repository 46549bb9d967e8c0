// Whoever waits for other ranks or hosts says so when it takes long.
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

  // To be called now and then. After the patience one line goes to stderr: what `waiting` says, as
  // in "rank 1 waits for rank 0 at 127.0.0.1 port 29500", and until when.
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
