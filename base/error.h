// The one exception type of the library, with the process exit code that it stands for.
// Message form: what went wrong, where (file, tensor, rank, call), and the way out.
#pragma once

#if __has_include(<fmt/base.h>)
#include <fmt/base.h>  // fmt 11 and newer
#else
#include <fmt/core.h>
#endif

#include <stdexcept>
#include <string>

namespace tessera {

// Numbers are the program's exit codes (docs/errors.md) and therefore fixed.
enum class ErrorCode : int {
  runtime = 1,
  usage = 2,
  configuration = 3,
  data = 4,
  checkpoint = 5,
  out_of_memory = 6,
  rank_failed = 7,
  numeric = 8,
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

[[noreturn]] void fail_with(ErrorCode code, fmt::string_view format, fmt::format_args args);
[[noreturn]] void misuse_with(fmt::string_view format, fmt::format_args args);

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  fail_with(code, format, fmt::make_format_args(args...));
}

// Misuse of the C++ API (wrong order of calls, wrong shapes) is a std::logic_error.
template <class... Args>
[[noreturn]] void misuse(fmt::format_string<Args...> format, Args&&... args) {
  misuse_with(format, fmt::make_format_args(args...));
}

// Formats a failed system call: the call's text, then errno's meaning and name.
std::string describe_errno(const char* call, int error_number);

}  // namespace tessera

// A run-time condition that input or the environment can break.
#define TESSERA_CHECK(condition, code, ...)                 \
  do {                                                      \
    if (!(condition)) ::tessera::fail((code), __VA_ARGS__); \
  } while (false)

// A condition that only a programming error of the caller can break.
#define TESSERA_REQUIRE(condition, ...)               \
  do {                                                \
    if (!(condition)) ::tessera::misuse(__VA_ARGS__); \
  } while (false)

// Wraps a system call that returns -1 on failure; yields the call's value.
#define TESSERA_SYSTEM(call)                                             \
  ([&] {                                                                 \
    auto tessera_result_ = (call);                                       \
    if (tessera_result_ == static_cast<decltype(tessera_result_)>(-1)) { \
      ::tessera::fail(::tessera::ErrorCode::runtime, "{}",               \
                      ::tessera::describe_errno(#call, errno));          \
    }                                                                    \
    return tessera_result_;                                              \
  }())
