// Files: system calls, retried when interrupted or short, with error messages.
#include "checkpoint/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "checkpoint/io/failure.h"

namespace tessera::checkpoint {

int SystemCalls::open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}
ssize_t SystemCalls::pread(int fd, void* data, std::size_t bytes, off_t offset) {
  return ::pread(fd, data, bytes, offset);
}
ssize_t SystemCalls::pwrite(int fd, const void* data, std::size_t bytes, off_t offset) {
  return ::pwrite(fd, data, bytes, offset);
}
int SystemCalls::ftruncate(int fd, off_t bytes) {
  return ::ftruncate(fd, bytes);
}
int SystemCalls::fallocate(int fd, off_t bytes) {
  return ::fallocate(fd, 0, 0, bytes);
}
int SystemCalls::fsync(int fd) {
  return ::fsync(fd);
}
int SystemCalls::sync_range(int fd, off_t offset, off_t bytes, unsigned flags) {
  return ::sync_file_range(fd, offset, bytes, flags);
}
int SystemCalls::close(int fd) {
  return ::close(fd);
}
int SystemCalls::flock(int fd, int operation) {
  return ::flock(fd, operation);
}
int SystemCalls::mkdir(const char* path, mode_t mode) {
  return ::mkdir(path, mode);
}
int SystemCalls::rename(const char* from, const char* to) {
  return ::rename(from, to);
}
int SystemCalls::exchange(const char* first, const char* second) {
  return ::renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE);
}
int SystemCalls::openat(int folder, const char* name, int flags) {
  return ::openat(folder, name, flags);
}
int SystemCalls::unlinkat(int folder, const char* name, int flags) {
  return ::unlinkat(folder, name, flags);
}
int SystemCalls::statvfs(const char* path, struct statvfs* result) {
  return ::statvfs(path, result);
}

namespace {

thread_local SystemCalls* replaced_calls = nullptr;

// Repeats a call while signals interrupt it.
template <class Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

[[noreturn]] void fail_io(std::string_view action, const std::filesystem::path& path,
                          const char* call) {
  const int error_number = errno;
  std::string_view way_out;
  if (error_number == ENOSPC || error_number == EDQUOT) {
    way_out = "; free some space or choose another folder";
  } else if (error_number == EACCES || error_number == EPERM || error_number == EROFS) {
    way_out = "; choose a folder that this user may write";
  }
  const std::string text = fmt::format("cannot {} '{}': {}{}", action, path.string(),
                                       describe_errno(call, error_number), way_out);
  throw SystemFailure(error_number, text);
}

// The errors of open() if the path has no regular file: damage, not a system failure.
bool says_no_file(int error_number) {
  return error_number == ENOENT || error_number == ENOTDIR || error_number == ELOOP ||
         error_number == ENXIO || error_number == EISDIR;
}

}  // namespace

SystemCalls& system_calls() {
  static SystemCalls operating_system;  // has no state
  return replaced_calls != nullptr ? *replaced_calls : operating_system;
}

ScopedSystemCalls::ScopedSystemCalls(SystemCalls& calls)
    : previous_(std::exchange(replaced_calls, &calls)) {}

ScopedSystemCalls::~ScopedSystemCalls() {
  replaced_calls = previous_;
}

File::File(std::filesystem::path path, int flags, mode_t mode) : path_(std::move(path)) {
  fd_ = uninterrupted([&] { return system_calls().open(path_.c_str(), flags | O_CLOEXEC, mode); });
  if (fd_ != -1) return;
  const bool creates = (flags & O_CREAT) != 0;
  if (!creates && says_no_file(errno)) {
    fail(ErrorCode::checkpoint, "cannot open '{}': {}", path_.string(),
         describe_errno("open", errno));
  }
  if ((flags & O_ACCMODE) == O_RDONLY) {
    fail_path("open", path_, "open", errno, way_out_of_reading(errno));
  }
  fail_io(creates ? "create" : "open", path_, "open");
}

File File::open_for_reading(const std::filesystem::path& path) {
  File file(path, O_RDONLY | O_NONBLOCK);  // a FIFO in a file's place must not block
  file.require_regular();
  return file;
}

File File::open_for_writing(const std::filesystem::path& path) {
  File file(path, O_RDWR | O_NONBLOCK);
  file.require_regular();
  return file;
}

File File::create(const std::filesystem::path& path, mode_t mode) {
  constexpr mode_t of_owner = 0600;
  return File(path, O_RDWR | O_CREAT | O_EXCL, (mode & default_mode) | of_owner);
}

File File::create_or_truncate(const std::filesystem::path& path) {
  return File(path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

File::~File() {
  if (fd_ != -1 && system_calls().close(fd_) == -1) {
    print_err("closing '{}': {}\n", path_.string(), describe_errno("close", errno));
  }
}

void File::require_regular() const {
  struct stat status {};
  if (::fstat(fd_, &status) == -1) fail_io("examine", path_, "fstat");
  TESSERA_CHECK(S_ISREG(status.st_mode), ErrorCode::checkpoint, "'{}' is not a regular file",
                path_.string());
}

std::uint64_t File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) == -1) fail_io("examine", path_, "fstat");
  return static_cast<std::uint64_t>(status.st_size);
}

mode_t File::mode() const {
  struct stat status {};
  if (::fstat(fd_, &status) == -1) fail_io("examine", path_, "fstat");
  return status.st_mode & 0777;
}

std::filesystem::path File::real_path() const {
  return path_of_descriptor(fd_);
}

void File::read_at(std::uint64_t offset, void* data, std::size_t bytes) const {
  auto* out = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t got = uninterrupted(
        [&] { return system_calls().pread(fd_, out, bytes, static_cast<off_t>(offset)); });
    if (got == -1) fail_io(fmt::format("read byte {} of", offset), path_, "pread");
    TESSERA_CHECK(got > 0, ErrorCode::checkpoint,
                  "'{}' ends at byte {}, {} bytes short: the file is truncated", path_.string(),
                  offset, bytes);
    out += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

void File::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  const auto* in = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t put = uninterrupted(
        [&] { return system_calls().pwrite(fd_, in, bytes, static_cast<off_t>(offset)); });
    if (put == -1) fail_io(fmt::format("write byte {} of", offset), path_, "pwrite");
    TESSERA_CHECK(put > 0, ErrorCode::checkpoint, "cannot write byte {} of '{}': pwrite took none",
                  offset, path_.string());
    in += put;
    offset += static_cast<std::uint64_t>(put);
    bytes -= static_cast<std::size_t>(put);
  }
}

void File::resize(std::uint64_t bytes) {
  // Reserves space before the first byte is written if the file system can: a full disk is noticed
  // now, and the file lies in one piece. Elsewhere the file is sparse.
  if (bytes > 0 && uninterrupted([&] {
                     return system_calls().fallocate(fd_, static_cast<off_t>(bytes));
                   }) == -1) {
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
      fail_io(fmt::format("reserve {} bytes for", bytes), path_, "fallocate");
    }
  }
  if (uninterrupted([&] { return system_calls().ftruncate(fd_, static_cast<off_t>(bytes)); }) ==
      -1) {
    fail_io(fmt::format("set to {} bytes", bytes), path_, "ftruncate");
  }
}

void File::start_writing(std::uint64_t offset, std::uint64_t bytes) noexcept {
  static_cast<void>(::sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                                      SYNC_FILE_RANGE_WRITE));
}

void File::sync() {
  if (uninterrupted([&] { return system_calls().fsync(fd_); }) == -1) {
    fail_io("make durable", path_, "fsync");
  }
}

void File::sync_range(std::uint64_t offset, std::uint64_t bytes, unsigned flags) {
  const int result = uninterrupted([&] {
    return system_calls().sync_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                                     flags);
  });
  // As with fsync, an error that is reported here is not reported again.
  if (result == -1 && errno != ENOSYS && errno != EINVAL && errno != ESPIPE) {
    fail_io("make durable", path_, "sync_file_range");
  }
}

void File::begin_writeback(std::uint64_t offset, std::uint64_t bytes) {
  sync_range(offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void File::await_writeback(std::uint64_t offset, std::uint64_t bytes) {
  sync_range(offset, bytes,
             SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

void File::close() {
  // Linux frees the descriptor even when close reports an error or an interruption: do not close
  // again.
  const int fd = std::exchange(fd_, -1);
  if (system_calls().close(fd) == -1 && errno != EINTR) fail_io("close", path_, "close");
}

File::Lock File::try_lock() {
  if (uninterrupted([&] { return system_calls().flock(fd_, LOCK_EX | LOCK_NB); }) == 0) {
    return Lock::taken;
  }
  if (errno == EWOULDBLOCK) return Lock::held;
  if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) return Lock::unsupported;
  fail_io("lock", path_, "flock");
}

}  // namespace tessera::checkpoint
