// The code of an error while a file was written.
#pragma once

#include <cerrno>

#include "base/error.h"

namespace tessera {

// What is out of room (a full disk, a quota, a limit on the size of files) has one code wherever it
// happens, that of a save, since nothing but room helps; everything else is a system call that
// failed.
inline ErrorCode full_disk_or(int error_number, ErrorCode otherwise) {
  const bool no_room = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  return no_room ? ErrorCode::checkpoint : otherwise;
}
inline ErrorCode full_disk_or_runtime(int error_number) {
  return full_disk_or(error_number, ErrorCode::runtime);
}

}  // namespace tessera
