// How the program ends when something went wrong: one line and an exit code. Ranks under `tessera
// launch` hand their line to the launcher, which prints what several ranks say alike once.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::cli {

struct Failure {
  int code = 1;
  std::string message;
  int rank = 0;
};

// The exception being handled as a failure; none when it only says that nobody reads our output any
// more.
std::optional<Failure> current_failure();

// To the launcher if there is one, else to stderr as "tessera: error: ...", with the rank where
// there are several.
void report_failure(const Failure& failure);

// The launcher's end of that. The write end is close-on-exec; a rank keeps it by clearing that
// between fork and exec.
class FailureChannel {
 public:
  static constexpr const char* variable = "TESSERA_FAILURE_PIPE";

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
