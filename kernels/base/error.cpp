// errno in words.
#include "kernels/base/error.h"

#include <fmt/format.h>

#include <cstring>

namespace tessera {

void fail_with(ErrorCode code, fmt::string_view format, fmt::format_args args) {
  throw Error(code, fmt::vformat(format, args));
}

void misuse_with(fmt::string_view format, fmt::format_args args) {
  throw std::logic_error(fmt::vformat(format, args));
}

std::string describe_errno(const char* call, int error_number) {
  const char* name = strerrorname_np(error_number);
  return fmt::format("{} failed: {} ({})", call, strerrordesc_np(error_number),
                     name != nullptr ? name : "unknown errno");
}

}  // namespace tessera
