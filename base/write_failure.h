// The error code of a failed write to a file.
#pragma once

#include <cerrno>

#include "base/error.h"

namespace tessera {

// Lack of room (a full disk, a quota, a limit on file sizes) always has the code of a failed save,
// because only more room helps. Any other error has the code `otherwise`.
inline ErrorCode full_disk_or(int error_number, ErrorCode otherwise) {
  const bool no_room = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  return no_room ? ErrorCode::checkpoint : otherwise;
}
inline ErrorCode full_disk_or_runtime(int error_number) {
  return full_disk_or(error_number, ErrorCode::runtime);
}

}  // namespace tessera
