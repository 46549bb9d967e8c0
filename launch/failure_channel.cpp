// The pipe from ranks to their launcher.
#include "launch/failure_channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tessera::launcher {

FailureChannel::FailureChannel() {
  int ends[2];
  TESSERA_SYSTEM(::pipe2(ends, O_CLOEXEC));
  read_end_ = ends[0];
  write_end_ = ends[1];
  ::fcntl(read_end_, F_SETFL, O_NONBLOCK);
}

FailureChannel::~FailureChannel() {
  ::close(read_end_);
  ::close(write_end_);
}

std::string FailureChannel::variable_value() const {
  struct stat status {};
  TESSERA_SYSTEM(::fstat(write_end_, &status));
  return fmt::format("{}:{}", write_end_, status.st_ino);
}

std::vector<Failure> FailureChannel::take() {
  char block[PIPE_BUF];
  for (ssize_t got = ::read(read_end_, block, sizeof block); got > 0;
       got = ::read(read_end_, block, sizeof block)) {
    partial_.append(block, static_cast<std::size_t>(got));
  }
  std::vector<Failure> failures;
  for (std::size_t end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
    const auto object = nlohmann::json::parse(partial_.substr(0, end), nullptr, false);
    partial_.erase(0, end + 1);
    if (!object.is_object()) continue;  // some other program wrote into its inherited descriptor
    failures.push_back(
        {object.value("code", 1), object.value("message", std::string()), object.value("rank", 0)});
  }
  return failures;
}

}  // namespace tessera::launcher
