// The text of errors: their place, and errno in words.
#include "base/error.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error_place.h"

namespace tessera {
namespace {
thread_local const ErrorPlace* innermost_place = nullptr;
}

ErrorPlace::ErrorPlace() : outer_(innermost_place) {
  innermost_place = this;
}

ErrorPlace::~ErrorPlace() {
  innermost_place = outer_;
}

std::string ErrorPlace::text() {
  if (innermost_place == nullptr) return {};
  const std::string place = innermost_place->describe();
  return place.empty() ? place : fmt::format(" (in {})", place);
}

void fail_with(ErrorCode code, fmt::string_view format, fmt::format_args args) {
  // Other errors, such as a dead rank or a full disk, do not come from the module.
  const std::string place = code == ErrorCode::data ? ErrorPlace::text() : std::string();
  throw Error(code, fmt::vformat(format, args) + place);
}

void misuse_with(fmt::string_view format, fmt::format_args args) {
  throw std::logic_error(fmt::vformat(format, args) + ErrorPlace::text());
}

std::string describe_errno(const char* call, int error_number) {
  const char* name = strerrorname_np(error_number);
  return fmt::format("{} failed: {} ({})", call, strerrordesc_np(error_number),
                     name != nullptr ? name : "unknown errno");
}

}  // namespace tessera
