// From what a program throws to its exit code.
#include "sharding/run.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "kernels/base/error.h"
#include "sharding/failure.h"

namespace tessera {
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

int detail::run_main(const std::function<int()>& program, std::string_view before_logic_errors) {
  try {
    const int code = program();
    return flush_stdout() ? code : std::max(code, static_cast<int>(ErrorCode::runtime));
  } catch (...) {
    const std::optional<Failure> failure = current_failure(before_logic_errors);
    if (!failure) return 0;
    std::fflush(stdout);
    report_failure(*failure);
    return failure->code;
  }
}

}  // namespace tessera
