// Faults for tests: waits between streams that do not happen.
#pragma once

#include <atomic>
#include <string>

namespace tessera::emulator {

// While such an object lives, cudaStreamWaitEvent does nothing (and succeeds) if the waiting stream
// and the stream that recorded the event have these names. A test thus plants a missing wait in
// production code and expects the access checker or the thread sanitizer to find it.
class DropWaits {
 public:
  DropWaits(std::string waiting_stream, std::string recording_stream);
  ~DropWaits();
  DropWaits(const DropWaits&) = delete;
  DropWaits& operator=(const DropWaits&) = delete;

  // The number of dropped waits: a test that dropped none tests nothing.
  [[nodiscard]] int count() const { return count_; }

 private:
  friend bool drops_wait(const std::string& waiting, const std::string& recording);

  const std::string waiting_;
  const std::string recording_;
  std::atomic<int> count_{0};
};

// Returns true if this wait must be dropped, and counts it.
bool drops_wait(const std::string& waiting, const std::string& recording);

}  // namespace tessera::emulator
