// errno in words.
#include "kernels/base/error.h"

#include <cstring>

namespace tessera {

std::string describe_errno(const char* call, int error_number) {
  const char* name = strerrorname_np(error_number);
  return fmt::format("{} failed: {} ({})", call, strerrordesc_np(error_number),
                     name != nullptr ? name : "unknown errno");
}

}  // namespace tessera
