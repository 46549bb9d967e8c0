// Counts system calls and passes them on.
#include "checkpoint/io/disk_watch.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>

namespace tessera::checkpoint {

template <class Call>
auto DiskWatch::watched(const char* name, int fd, Call&& call) {
  using Result = decltype(call());
  if (cancelled_.load()) {
    errno = ECANCELED;
    return Result{-1};
  }
  fd_.store(fd);
  name_.store(name);
  const Result result = call();
  const int error_number = errno;
  name_.store(nullptr);
  moves_.fetch_add(1);
  errno = error_number;
  return result;
}

std::string DiskWatch::describe_call() const {
  const char* const name = name_.load();
  if (name == nullptr) return {};
  const int fd = fd_.load();
  if (fd < 0) return name;
  std::error_code error;
  const auto path = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error);
  return error ? std::string(name) : fmt::format("{} of '{}'", name, path.string());
}

int DiskWatch::open(const char* path, int flags, mode_t mode) {
  return watched("open", -1, [&] { return calls_.open(path, flags, mode); });
}
ssize_t DiskWatch::pread(int fd, void* data, std::size_t bytes, off_t offset) {
  return watched("pread", fd, [&] { return calls_.pread(fd, data, bytes, offset); });
}
ssize_t DiskWatch::pwrite(int fd, const void* data, std::size_t bytes, off_t offset) {
  return watched("pwrite", fd, [&] { return calls_.pwrite(fd, data, bytes, offset); });
}
int DiskWatch::ftruncate(int fd, off_t bytes) {
  return watched("ftruncate", fd, [&] { return calls_.ftruncate(fd, bytes); });
}
int DiskWatch::fallocate(int fd, off_t bytes) {
  return watched("fallocate", fd, [&] { return calls_.fallocate(fd, bytes); });
}
int DiskWatch::fsync(int fd) {
  return watched("fsync", fd, [&] { return calls_.fsync(fd); });
}
int DiskWatch::sync_range(int fd, off_t offset, off_t bytes, unsigned flags) {
  return watched("sync_file_range", fd,
                 [&] { return calls_.sync_range(fd, offset, bytes, flags); });
}
int DiskWatch::close(int fd) {
  return calls_.close(fd);
}
int DiskWatch::flock(int fd, int operation) {
  return watched("flock", fd, [&] { return calls_.flock(fd, operation); });
}
int DiskWatch::mkdir(const char* path, mode_t mode) {
  return watched("mkdir", -1, [&] { return calls_.mkdir(path, mode); });
}
int DiskWatch::rename(const char* from, const char* to) {
  return watched("rename", -1, [&] { return calls_.rename(from, to); });
}
int DiskWatch::exchange(const char* first, const char* second) {
  return watched("renameat2", -1, [&] { return calls_.exchange(first, second); });
}
int DiskWatch::openat(int folder, const char* name, int flags) {
  return watched("openat", folder, [&] { return calls_.openat(folder, name, flags); });
}
int DiskWatch::unlinkat(int folder, const char* name, int flags) {
  return watched("unlinkat", folder, [&] { return calls_.unlinkat(folder, name, flags); });
}
int DiskWatch::statvfs(const char* path, struct statvfs* result) {
  return watched("statvfs", -1, [&] { return calls_.statvfs(path, result); });
}

}  // namespace tessera::checkpoint
