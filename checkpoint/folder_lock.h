// The lock of a folder of checkpoints: one save at a time, on file systems without flock too.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/file.h"

namespace tessera::checkpoint {

// Held while it lives. By flock on DIR/.lock, which ends with the process however that ends. Where
// the file system has no flock (Lustre mounted without it, some FUSE), by DIR/.lock-owner, a file
// that only one can create: its name outlives a process that is killed, so it says which process
// of which host and start holds it, and one of this host that is gone is taken over.
class FolderLock {
 public:
  // Error(checkpoint) when another save holds it, or may hold it on another host.
  explicit FolderLock(const std::filesystem::path& dir);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // What to tell people about the weaker way, or nothing.
  [[nodiscard]] const std::string& warning() const { return warning_; }

 private:
  void take_owner_file(const std::filesystem::path& dir);

  File file_;
  std::filesystem::path owner_file_;  // to remove; empty with flock
  std::string warning_;
};

}  // namespace tessera::checkpoint
