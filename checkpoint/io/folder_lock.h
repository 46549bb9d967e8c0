// The lock of a folder of checkpoints: one save at a time, on file systems without flock too.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/io/file.h"

namespace tessera::checkpoint {

// Held while it lives. By flock on DIR/.lock, which ends with the process however that ends. Where
// the file system has no flock (Lustre mounted without it, some FUSE), by DIR/.lock-owner, a file
// that only one can create: its name outlives a process that is killed, so it says which process
// of which host and start holds it, and one of this host that is gone is taken over.
class FolderLock {
 public:
  // Waits for another save as long as `patience`; then, and where one on another host may hold it,
  // Error(checkpoint).
  explicit FolderLock(const std::filesystem::path& dir, std::chrono::milliseconds patience = {});
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // What to tell people about the weaker way, or nothing.
  [[nodiscard]] const std::string& warning() const { return warning_; }

 private:
  File::Lock lock_patiently(std::chrono::milliseconds patience);
  void take_owner_file(const std::filesystem::path& dir);

  File file_;
  std::filesystem::path owner_file_;  // to remove; empty with flock
  std::string warning_;
};

// A folder that its process works in, by flock on itself, so that others can tell it from what a
// dead one left.
class LockedFolder {
 public:
  // None: another holds it, or the file system cannot lock folders.
  static std::optional<LockedFolder> try_lock(const std::filesystem::path& folder);
  LockedFolder(LockedFolder&& other) noexcept;
  LockedFolder& operator=(LockedFolder&& other) noexcept;
  ~LockedFolder();

 private:
  explicit LockedFolder(int fd) : fd_(fd) {}
  int fd_;
};

// The form of TARGET.partial-<id> that conversions and exports work in.
std::filesystem::path partial_beside(const std::filesystem::path& target, const std::string& id);
// Removes every such folder beside `target` that nobody holds. Returns a line for each that was
// removed or stays.
std::vector<std::string> clear_partials(const std::filesystem::path& target);

}  // namespace tessera::checkpoint
