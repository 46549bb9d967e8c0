// The error code of a failed write to a file.
#pragma once

#include <cerrno>

#include "base/error.h"

namespace tessera {

// Lack of room (a full disk, a quota, a limit on file sizes) always has the code of a failed save,
// because only more room helps. Any other error is a failed system call.
inline ErrorCode full_disk_or_runtime(int error_number) {
  const bool no_room = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  return no_room ? ErrorCode::checkpoint : ErrorCode::runtime;
}

}  // namespace tessera
