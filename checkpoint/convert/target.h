// Where a conversion writes: a folder beside the target, which becomes the target by one rename.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/io/folder_lock.h"

namespace tessera::checkpoint {

// Owns TARGET.partial-<id>/ while it lives, and removes it when it was not published. It is locked,
// so that the next conversion to the same target can tell a dead one's remains, which it clears,
// from one that works.
class PendingTarget {
 public:
  // Refuses a target that exists unless `force` says that a checkpoint there may be replaced.
  PendingTarget(std::filesystem::path target, bool is_file, bool force, std::uint64_t needed_bytes);
  ~PendingTarget();
  PendingTarget(const PendingTarget&) = delete;
  PendingTarget& operator=(const PendingTarget&) = delete;

  // The folder that exists, or the file that does not yet.
  [[nodiscard]] const std::filesystem::path& payload() const { return payload_; }
  // The payload's bytes are durable: now its name.
  void publish();
  // What was found beside the target and put right.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  void restore_old();
  void check_place() const;
  std::string roll_back() noexcept;

  std::filesystem::path target_, parent_, partial_, payload_;
  bool is_file_;
  bool force_;
  std::optional<LockedFolder> lock_;
  bool owns_partial_ = false;
  std::vector<std::string> notes_;
};

}  // namespace tessera::checkpoint
