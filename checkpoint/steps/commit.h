// The folder of checkpoints: step folders by name, and the commit of a new step. Rank 0's work.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/io/file.h"
#include "checkpoint/io/folder_lock.h"
#include "checkpoint/state/line.h"
#include "checkpoint/steps/lineage.h"
#include "checkpoint/steps/step_name.h"

namespace tessera::checkpoint {

std::string partial_name(std::int64_t step, const std::string& save_id);  // "step-12.partial-<id>"
// Whether a name is one that an unfinished save or deletion of ours leaves behind.
bool is_leftover_name(std::string_view name);

// With the folder's lock held: leftovers that are complete (a process died between two renames, or
// just before the one) become steps again where no step has their name; the others are removed
// when `clear` says so. A line for each that would not go.
std::vector<std::string> settle_leftovers(const std::filesystem::path& dir, bool clear);
// The same for a reader, which clears nothing: only when there is something to bring back, and
// when no save is running. Returns a line for what it could not.
std::vector<std::string> recover_for_reading(const std::filesystem::path& dir);

// A save in progress: holds DIR's lock, owns the partial folder, and removes it when it is not
// committed.
class PendingStep {
 public:
  // Creates DIR, takes the lock (another save into DIR is waited for as long as `patience`, and
  // then an Error), settles what dead saves left, checks that `needed_bytes` are free, creates the
  // partial folder.
  PendingStep(const std::filesystem::path& dir, std::int64_t step, const std::string& save_id,
              std::uint64_t needed_bytes, const Line& line = {},
              std::chrono::milliseconds patience = {});
  ~PendingStep();
  PendingStep(const PendingStep&) = delete;
  PendingStep& operator=(const PendingStep&) = delete;

  // For the manifest.
  [[nodiscard]] const Lineage& lineage() const { return saved_.lineage; }

  struct Retention {
    int keep = 0;       // newest steps of the run; 0: all
    int keep_best = 0;  // and those with the lowest scores
  };
  // The manifest, the rename, `latest`, retention. A step of the same run in its place is replaced,
  // one of another run moved aside. Throws while nothing is committed, and when the new name could
  // not be made durable; then it says that the step is complete. Trouble after that comes back as
  // lines, with what earlier calls had to say.
  std::vector<std::string> commit(std::string_view manifest, const Retention& retention,
                                  std::optional<double> score = {});
  // Removes the partial folder; returns why it could not, or nothing.
  std::string roll_back() noexcept;

 private:
  void place(const Line& line);
  void publish();
  void take_name(const std::string& run_there);
  void attempt(const std::function<void()>& work);
  void apply_retention(const Retention& retention);

  std::filesystem::path dir_;
  std::filesystem::path partial_;
  CommittedStep saved_;
  std::optional<FolderLock> lock_;
  StepListing listing_;  // as the folder was before
  std::filesystem::path replaced_;
  bool owns_partial_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace tessera::checkpoint
