// Converts a program's exceptions to its exit code.
#include "sharding/context/run.h"

#include <cerrno>
#include <cstdio>

#include "base/error.h"
#include "base/write_failure.h"
#include "sharding/context/failure.h"

namespace tessera {
namespace {

// The exit code of flushing the remaining output; 0: all is written.
int flush_stdout() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  // The reader has left, as in `tessera env | head -1`: not an error.
  if (errno == EPIPE) return 0;
  const int reason = errno;
  const int code = static_cast<int>(full_disk_or_runtime(reason));
  report_failure({code, describe_errno("writing to standard output", reason)});
  return code;
}

}  // namespace

int detail::run_main(const std::function<int()>& program, std::string_view before_logic_errors) {
  try {
    const int code = program();
    const int written = flush_stdout();
    return code != 0 ? code : written;
  } catch (...) {
    const std::optional<Failure> failure = current_failure(before_logic_errors);
    if (!failure) return 0;
    std::fflush(stdout);
    report_failure(*failure);
    return failure->code;
  }
}

}  // namespace tessera
