// The launcher's end of the pipe through which ranks hand it their errors
// (sharding/context/failure.h).
#pragma once

#include <string>
#include <vector>

#include "sharding/context/failure.h"

namespace tessera::cli {

// The write end is close-on-exec; a rank keeps it by clearing that between fork and exec.
class FailureChannel {
 public:
  FailureChannel();
  ~FailureChannel();
  FailureChannel(const FailureChannel&) = delete;
  FailureChannel& operator=(const FailureChannel&) = delete;

  [[nodiscard]] std::string variable_value() const;
  [[nodiscard]] int write_end() const { return write_end_; }
  // What has arrived and was not taken before; never waits.
  std::vector<Failure> take();

 private:
  int read_end_ = -1;
  int write_end_ = -1;
  std::string partial_;
};

}  // namespace tessera::cli
