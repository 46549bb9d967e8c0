// Converts a program's exceptions to its exit code.
#include "sharding/context/run.h"

#include <poll.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>

#include "base/error.h"
#include "base/write_failure.h"
#include "sharding/context/failure.h"

namespace tessera {
namespace {

constexpr const char* fmt_write_error = "cannot write to file";  // of fmt::print

// The reason why an earlier write to standard output failed; its errno is gone.
int reason_of_lost_output() {
  if (::write(STDOUT_FILENO, "", 0) < 0) return errno;  // a device reports it again
  pollfd reader{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&reader, 1, 0) > 0 && (reader.revents & POLLERR) != 0) return EPIPE;
  struct statvfs disk {};
  const bool full = ::fstatvfs(STDOUT_FILENO, &disk) == 0 && disk.f_bavail == 0;
  return full ? ENOSPC : EIO;
}

// The exit code of flushing the remaining output; 0: all is written.
int flush_stdout() {
  const bool failed_before = std::ferror(stdout) != 0;
  const bool fails = std::fflush(stdout) != 0;
  if (!fails && !failed_before) return 0;
  const int reason = fails ? errno : reason_of_lost_output();
  // The reader has left, as in `tessera env | head -1`: not an error.
  if (reason == EPIPE) return 0;
  const int code = static_cast<int>(full_disk_or_runtime(reason));
  report_failure({code, describe_errno("writing to standard output", reason)});
  return code;
}

}  // namespace

int detail::run_main(const std::function<int()>& program, std::string_view before_logic_errors) {
  try {
    const int code = program();
    const int written = flush_stdout();
    const int of_destructors = take_code_of_destructors();
    if (code != 0) return code;
    return written != 0 ? written : of_destructors;
  } catch (...) {
    std::optional<Failure> failure = current_failure(before_logic_errors);
    if (!failure) return 0;
    std::fflush(stdout);
    if (std::ferror(stdout) != 0 && failure->message.starts_with(fmt_write_error)) {
      failure->message = "writing to standard output" +
                         failure->message.substr(std::string_view(fmt_write_error).size());
    }
    report_failure(*failure);
    return failure->code;
  }
}

}  // namespace tessera
