// The folder of checkpoints: step folders by name, the lock, and the commit of a new step. Rank 0's
// work.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file.h"

namespace tessera::checkpoint {

std::string step_name(std::int64_t step);                                 // "step-12"
std::string partial_name(std::int64_t step, const std::string& save_id);  // "step-12.partial-<id>"
// The step that a name like "step-12" stands for; none for any other name ("step-012",
// "step-12.bak").
std::optional<std::int64_t> parse_step_name(std::string_view name);
// Whether a name is one that an unfinished save or deletion of ours leaves behind.
bool is_leftover_name(std::string_view name);

struct StepFolder {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// Every folder of a step's name, by falling step; whether it is intact is for verify() to say.
std::vector<StepFolder> list_steps(const std::filesystem::path& dir);

// A save in progress: holds DIR's lock, owns the partial folder, and removes it when it is not
// committed.
class PendingStep {
 public:
  // Creates DIR, takes the lock (another save into DIR is an Error), clears what dead saves left,
  // checks that `needed_bytes` are free, creates the partial folder.
  PendingStep(const std::filesystem::path& dir, std::int64_t step, const std::string& save_id,
              std::uint64_t needed_bytes);
  ~PendingStep();
  PendingStep(const PendingStep&) = delete;
  PendingStep& operator=(const PendingStep&) = delete;

  // The manifest, the rename, `latest`, retention. An Error after the rename says that the step is
  // committed.
  void commit(std::string_view manifest, int keep);
  // Removes the partial folder; returns why it could not, or nothing.
  std::string roll_back() noexcept;

 private:
  void publish();

  std::filesystem::path dir_;
  std::int64_t step_;
  std::filesystem::path partial_;
  std::string save_id_;
  std::optional<File> lock_;
  bool owns_partial_ = false;
};

}  // namespace tessera::checkpoint
