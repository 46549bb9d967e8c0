// Progress of a thread's work on the disk. Its system calls are counted for another thread, which
// can make all further calls fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "checkpoint/io/file.h"

namespace tessera::checkpoint {

class DiskWatch final : public SystemCalls {
 public:
  // Passes the calls on to `calls`.
  explicit DiskWatch(SystemCalls& calls) : calls_(calls) {}

  // From any thread. Rises with every call that has returned.
  [[nodiscard]] std::uint64_t moves() const { return moves_.load(); }
  // From any thread. Describes the call that has not returned; empty: none.
  [[nodiscard]] std::string describe_call() const;
  // From any thread. From now on all new calls except close fail with ECANCELED.
  void cancel() { cancelled_.store(true); }

  int open(const char* path, int flags, mode_t mode) override;
  ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset) override;
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override;
  int ftruncate(int fd, off_t bytes) override;
  int fallocate(int fd, off_t bytes) override;
  int fsync(int fd) override;
  int sync_range(int fd, off_t offset, off_t bytes, unsigned flags) override;
  int close(int fd) override;
  int flock(int fd, int operation) override;
  int mkdir(const char* path, mode_t mode) override;
  int rename(const char* from, const char* to) override;
  int exchange(const char* first, const char* second) override;
  int openat(int folder, const char* name, int flags) override;
  int unlinkat(int folder, const char* name, int flags) override;
  int statvfs(const char* path, struct statvfs* result) override;

 private:
  template <class Call>
  auto watched(const char* name, int fd, Call&& call);

  SystemCalls& calls_;
  std::atomic<std::uint64_t> moves_{0};
  std::atomic<bool> cancelled_{false};
  std::atomic<const char*> name_{nullptr};  // of the call that is under way
  std::atomic<int> fd_{-1};                 // its file, where it has one
};

}  // namespace tessera::checkpoint
