// Faults for tests: waits between streams that do not happen.
#pragma once

#include <atomic>
#include <string>

namespace tessera::emulator {

// As long as one lives, cudaStreamWaitEvent does nothing (and succeeds) where the stream that is to
// wait and the stream that recorded the event have these names. A test plants a missing wait in
// production code that way, and expects the access checker or the thread sanitizer to find it.
class DropWaits {
 public:
  DropWaits(std::string waiting_stream, std::string recording_stream);
  ~DropWaits();
  DropWaits(const DropWaits&) = delete;
  DropWaits& operator=(const DropWaits&) = delete;

  // How many it was: a test in which none was dropped tests nothing.
  [[nodiscard]] int count() const { return count_; }

 private:
  friend bool drops_wait(const std::string& waiting, const std::string& recording);

  const std::string waiting_;
  const std::string recording_;
  std::atomic<int> count_{0};
};

// Whether this wait is to be dropped; counts it.
bool drops_wait(const std::string& waiting, const std::string& recording);

}  // namespace tessera::emulator
