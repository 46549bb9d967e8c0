// The folder of checkpoints: step folders by name, and the commit of a new step. Runs on rank 0.
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
// True if the name is one that an unfinished save or deletion of Tessera leaves behind.
bool is_leftover_name(std::string_view name);

// Requires the folder's lock. Complete leftovers (the process died between two renames, or just
// before the only one) become steps again if no step has their name. The others are removed if
// `clear` is set and they are this user's. Returns a line for each that stays.
std::vector<std::string> settle_leftovers(const std::filesystem::path& dir, bool clear);
// The same for a reader, which removes nothing. Runs only if there is something to recover and no
// save is running. Returns a line for each failure.
std::vector<std::string> recover_for_reading(const std::filesystem::path& dir);

// A save in progress: holds DIR's lock, owns the partial folder, and removes it if it is not
// committed.
class PendingStep {
 public:
  // Creates DIR, takes the lock (waits up to `patience` for another save into DIR, then throws an
  // Error), settles the leftovers of dead saves, checks that `needed_bytes` are free, creates the
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
  // Writes the manifest, renames, updates `latest` and applies retention. Replaces a step of the
  // same run with this name, and moves one of another run aside. Throws if nothing is committed, or
  // if the new name could not be made durable; then the error says that the step is complete. Later
  // problems are returned as lines, with those of earlier calls.
  std::vector<std::string> commit(std::string_view manifest, const Retention& retention,
                                  std::optional<double> score = {});
  // Removes the partial folder; returns the reason if it could not, or empty.
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
