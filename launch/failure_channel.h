// The launcher's end of the pipe through which ranks send it their errors
// (sharding/context/failure.h).
#pragma once

#include <string>
#include <vector>

#include "sharding/context/failure.h"

namespace tessera::launcher {

// The write end is close-on-exec; a rank clears that flag between fork and exec to keep it.
class FailureChannel {
 public:
  FailureChannel();
  ~FailureChannel();
  FailureChannel(const FailureChannel&) = delete;
  FailureChannel& operator=(const FailureChannel&) = delete;

  [[nodiscard]] std::string variable_value() const;
  [[nodiscard]] int write_end() const { return write_end_; }
  // The errors that have arrived since the last call; never waits.
  std::vector<Failure> take();

 private:
  int read_end_ = -1;
  int write_end_ = -1;
  std::string partial_;
};

}  // namespace tessera::launcher
