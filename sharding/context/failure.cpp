// Converts exceptions to exit codes and lines, and sends a line to the launcher.
#include "sharding/context/failure.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/text/print.h"
#include "base/write_failure.h"
#include "comm/history.h"

namespace tessera {
namespace {

// Makes one line of any text: names of tensors and files come from untrusted input.
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

// The launcher's pipe if the descriptor still refers to it: a program between launcher and rank may
// have closed it, and the number may have been reused since.
std::optional<int> launcher_pipe() {
  const char* text = std::getenv(failure_pipe_variable);
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

// A program may throw an Error with a number of its own. What a process cannot end with, or would
// end with as if nothing had happened, becomes the code of errors in general.
int exit_code_of(ErrorCode code) {
  const int number = static_cast<int>(code);
  constexpr int largest = 255;  // of which a parent process sees all bits
  return number >= 1 && number <= largest ? number : static_cast<int>(ErrorCode::runtime);
}

bool send_to_launcher(const Failure& failure) {
  const std::optional<int> pipe = launcher_pipe();
  if (!pipe) return false;
  // A write of at most PIPE_BUF bytes is not mixed with the writes of other ranks.
  nlohmann::json object = {
      {"rank", failure.rank}, {"code", failure.code}, {"message", failure.message}};
  const auto replace = nlohmann::json::error_handler_t::replace;
  std::string line = object.dump(-1, ' ', false, replace);
  while (line.size() >= PIPE_BUF) {
    const std::size_t length = object["message"].get<std::string>().size();
    const std::size_t excess = line.size() - PIPE_BUF + 4;  // with the dots; escapes need more
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

std::atomic<int> code_of_destructors{0};

}  // namespace

std::optional<Failure> current_failure(std::string_view before_logic_errors) {
  Failure failure;
  failure.rank = environment_number("RANK").value_or(0);
  try {
    throw;
  } catch (const Error& error) {
    failure.code = exit_code_of(error.code());
    failure.message = one_line(error.what());
  } catch (const std::bad_alloc&) {
    failure.code = static_cast<int>(ErrorCode::out_of_memory);
    failure.message = "out of memory; use more ranks, a smaller batch or a smaller model";
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::broken_pipe) return std::nullopt;
    failure.code = static_cast<int>(full_disk_or_runtime(error.code().value()));
    failure.message = one_line(error.what());
  } catch (const std::logic_error& error) {
    failure.message = std::string(before_logic_errors) + one_line(error.what());
  } catch (const std::exception& error) {
    failure.message = one_line(error.what());
  } catch (...) {
    failure.message = std::string(before_logic_errors) + "an exception other than std::exception";
  }
  return failure;
}

std::string in_lines(std::string message) {
  const std::size_t report = message.find("; " + comm::histories_title());
  if (report == std::string::npos) return message;
  constexpr std::string_view next = "; on '";
  for (std::size_t at = message.find(next, report); at != std::string::npos;
       at = message.find(next, at)) {
    message.replace(at, 1, "\n   ");
  }
  return message.replace(report, 1, "\n ");
}

void report_from_destructor(std::string_view doing, bool prints) {
  const std::optional<Failure> failure = current_failure();
  if (!failure) return;
  code_of_destructors.store(failure->code);
  if (!prints) return;
  write_text(STDERR_FILENO,
             fmt::format("tessera: error: {}: {}\n", doing, in_lines(failure->message)));
}

int take_code_of_destructors() {
  return code_of_destructors.exchange(0);
}

void report_failure(const Failure& failure) {
  if (send_to_launcher(failure)) return;
  const bool several =
      std::getenv("RANK") != nullptr && environment_number("WORLD_SIZE").value_or(1) > 1;
  write_text(STDERR_FILENO, fmt::format("tessera: {}error: {}\n",
                                        several ? fmt::format("rank {}: ", failure.rank) : "",
                                        in_lines(failure.message)));
}

}  // namespace tessera
