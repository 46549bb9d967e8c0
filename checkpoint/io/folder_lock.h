// The lock of a folder of checkpoints: one save at a time, also on file systems without flock.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/io/file.h"

namespace tessera::checkpoint {

// Held while the object lives. Uses flock on DIR/.lock, which ends with the process. If the file
// system has no flock (Lustre mounted without it, some FUSE), uses DIR/.lock-owner, a file that
// only one process can create. This file outlives a process that is killed, so it names the
// process, host and boot of its owner. An owner of this host that is gone is replaced.
class FolderLock {
 public:
  // Waits up to `patience` for another save. Throws Error(checkpoint) after that, or if a process
  // on another host may hold the lock.
  explicit FolderLock(const std::filesystem::path& dir, std::chrono::milliseconds patience = {});
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // A warning for the user about the weaker lock, or empty.
  [[nodiscard]] const std::string& warning() const { return warning_; }

 private:
  File::Lock lock_patiently(std::chrono::milliseconds patience);
  void take_owner_file(const std::filesystem::path& dir);

  File file_;
  std::filesystem::path owner_file_;  // file to remove; empty with flock
  std::string warning_;
};

// A working folder that its process locks by flock, so that others can distinguish it from the
// remains of a dead process.
class LockedFolder {
 public:
  // None: another process holds it, or the file system cannot lock folders.
  static std::optional<LockedFolder> try_lock(const std::filesystem::path& folder);
  LockedFolder(LockedFolder&& other) noexcept;
  LockedFolder& operator=(LockedFolder&& other) noexcept;
  ~LockedFolder();

 private:
  explicit LockedFolder(int fd) : fd_(fd) {}
  int fd_;
};

// The name of the folders TARGET.partial-<id> that conversions and exports work in.
std::filesystem::path partial_beside(const std::filesystem::path& target, const std::string& id);
// Removes every such folder beside `target` that is this user's and not locked. Returns a line for
// each that was removed or stays.
std::vector<std::string> clear_partials(const std::filesystem::path& target);

}  // namespace tessera::checkpoint
