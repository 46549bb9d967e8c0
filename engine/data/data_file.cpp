// Opens regular files only, and reads through interruptions.
#include "engine/data/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace tessera {

DataFile::DataFile(std::string path) : path_(std::move(path)) {
  // With O_NONBLOCK a pipe that was named by mistake is refused below, instead of waited for.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  TESSERA_CHECK(descriptor_ >= 0, ErrorCode::data, "data file {} cannot be opened: {}", path_,
                describe_errno("open", errno));
  struct stat status {};
  const bool usable = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  if (!usable) ::close(descriptor_);
  TESSERA_CHECK(usable, ErrorCode::data, "data file {} is not a regular file", path_);
  size_ = status.st_size;
}

DataFile::~DataFile() {
  ::close(descriptor_);
}

std::size_t DataFile::read_to_end(std::int64_t first, void* out, std::size_t bytes) const {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(descriptor_, static_cast<char*>(out) + done, bytes - done,
                                static_cast<off_t>(first) + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    TESSERA_CHECK(got >= 0, ErrorCode::data, "data file {} cannot be read at byte {}: {}", path_,
                  first + static_cast<std::int64_t>(done), describe_errno("pread", errno));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void DataFile::read(std::int64_t first, void* out, std::size_t bytes) const {
  TESSERA_CHECK(read_to_end(first, out, bytes) == bytes, ErrorCode::data,
                "data file {} became shorter while it was in use: it had {} bytes, now it ends "
                "before byte {}",
                path_, size_, first + static_cast<std::int64_t>(bytes));
}

}  // namespace tessera
