// Exceptions to exit codes, and the pipe from ranks to their launcher.
#include "cli/failure.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "cli/printable.h"
#include "kernels/base/error.h"

namespace tessera::cli {
namespace {

// One line, whatever the message contains: names of tensors and files come from strangers.
std::string one_line(std::string_view text) {
  std::string line(text);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::replace(line.begin(), line.end(), '\t', ' ');
  return printable(line);
}

std::optional<int> environment_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view view(text);
  int value = 0;
  const auto [stop, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc{} || stop != view.data() + view.size()) return std::nullopt;
  return value;
}

// The launcher's pipe if the descriptor is still that pipe: a program between launcher and rank may
// have closed it, and the number may since mean something else.
std::optional<int> launcher_pipe() {
  const char* text = std::getenv(FailureChannel::variable);
  if (text == nullptr) return std::nullopt;
  const std::string_view view(text);
  const std::size_t colon = view.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  int descriptor = -1;
  unsigned long inode = 0;
  std::from_chars(view.data(), view.data() + colon, descriptor);
  std::from_chars(view.data() + colon + 1, view.data() + view.size(), inode);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISFIFO(status.st_mode) || status.st_ino != inode)
    return std::nullopt;
  return descriptor;
}

bool send_to_launcher(const Failure& failure) {
  const std::optional<int> pipe = launcher_pipe();
  if (!pipe) return false;
  // A write of at most PIPE_BUF bytes is not mixed with other ranks'.
  nlohmann::json object = {
      {"rank", failure.rank}, {"code", failure.code}, {"message", failure.message}};
  const auto replace = nlohmann::json::error_handler_t::replace;
  std::string line = object.dump(-1, ' ', false, replace);
  while (line.size() >= PIPE_BUF) {
    const std::size_t length = object["message"].get<std::string>().size();
    const std::size_t excess = line.size() - PIPE_BUF + 4;  // with the dots, or more: escapes
    object["message"] = failure.message.substr(0, length - std::min(length, excess)) + "...";
    line = object.dump(-1, ' ', false, replace);
  }
  line += '\n';
  ssize_t written = -1;
  do {
    written = ::write(*pipe, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  return written == static_cast<ssize_t>(line.size());
}

}  // namespace

std::optional<Failure> current_failure() {
  Failure failure;
  failure.rank = environment_number("RANK").value_or(0);
  try {
    throw;
  } catch (const Error& error) {
    failure.code = static_cast<int>(error.code());
    failure.message = one_line(error.what());
  } catch (const std::bad_alloc&) {
    failure.code = static_cast<int>(ErrorCode::out_of_memory);
    failure.message = "out of memory; use more ranks, a smaller batch or a smaller model";
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::broken_pipe) return std::nullopt;
    failure.message = one_line(error.what());
  } catch (const std::logic_error& error) {
    failure.message = "internal error: " + one_line(error.what());
  } catch (const std::exception& error) {
    failure.message = one_line(error.what());
  } catch (...) {
    failure.message = "internal error: an unknown exception";
  }
  return failure;
}

void report_failure(const Failure& failure) {
  if (send_to_launcher(failure)) return;
  const bool several =
      std::getenv("RANK") != nullptr && environment_number("WORLD_SIZE").value_or(1) > 1;
  const std::string line =
      several ? fmt::format("tessera: rank {}: error: {}\n", failure.rank, failure.message)
              : fmt::format("tessera: error: {}\n", failure.message);
  // One write, so that the lines of several ranks do not mix; where stderr is gone there is nothing
  // left to tell.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

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

}  // namespace tessera::cli
