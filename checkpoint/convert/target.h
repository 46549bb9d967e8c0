// The place of a conversion's output: a folder beside the target, renamed to the target at the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/io/folder_lock.h"

namespace tessera::checkpoint {

// "out/" is "out". Error(usage) for a path that does not name anything new: "", "/", "..".
std::filesystem::path named_target(const std::filesystem::path& target);

// Owns TARGET.partial-<id>/, and removes it at its end if it was not published. The folder is
// locked: the next conversion to the same target removes the remains of a dead conversion of this
// user, but not the folder of one that still runs.
class PendingTarget {
 public:
  // Refuses an existing target unless `force` allows it to replace a checkpoint. A folder with
  // anything else in it is never replaced; `carried` are the names of the small files that the
  // result will have, and that the target may have.
  PendingTarget(const std::filesystem::path& target, bool is_file, bool force,
                std::uint64_t needed_bytes, std::set<std::string> carried);
  ~PendingTarget();
  PendingTarget(const PendingTarget&) = delete;
  PendingTarget& operator=(const PendingTarget&) = delete;

  // The folder, which exists, or the file, which does not exist yet.
  [[nodiscard]] const std::filesystem::path& payload() const { return payload_; }
  // Renames the payload to the target. The payload's bytes must be durable.
  void publish();
  // Remains beside the target that were found and repaired.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  void restore_old();
  void check_place() const;
  std::string roll_back() noexcept;

  std::filesystem::path target_, parent_, partial_, payload_;
  bool is_file_;
  bool force_;
  std::set<std::string> carried_;
  std::optional<LockedFolder> lock_;
  bool owns_partial_ = false;
  std::vector<std::string> notes_;
};

}  // namespace tessera::checkpoint
