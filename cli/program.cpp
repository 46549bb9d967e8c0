// Reads the command line, runs the subcommand, turns what went wrong into one line and an exit
// code.
#include "cli/program.h"

#include <fmt/format.h>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "cli/command_line.h"
#include "cli/failure.h"
#include "kernels/base/error.h"

namespace tessera::cli {
namespace {

bool flush_stdout() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  // Nobody reads any more, as in `tessera env | head -1`: no error of ours.
  if (errno == EPIPE) return true;
  report_failure(
      {static_cast<int>(ErrorCode::runtime), describe_errno("writing to standard output", errno)});
  return false;
}

}  // namespace

int run_program(std::vector<std::string> arguments) {
  // A closed pipe and a file over its limit are errors of the write, handled where they happen.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = run_command_line(std::move(arguments));
    return flush_stdout() ? code : std::max(code, static_cast<int>(ErrorCode::runtime));
  } catch (...) {
    const std::optional<Failure> failure = current_failure();
    if (!failure) return 0;
    std::fflush(stdout);
    report_failure(*failure);
    return failure->code;
  }
}

}  // namespace tessera::cli
