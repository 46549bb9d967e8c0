// Turns a partial folder into a committed step, and frees the space of old steps. At every moment
// either the old or the new state is on disk: a step appears by one rename and disappears by one
// rename.
#include "checkpoint/steps/commit.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <random>
#include <utility>

#include "base/text/print.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/io/removal.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view latest_name = "latest";
constexpr std::string_view best_name = "best";

bool is_real_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error));
}

// The manifest goes first: a folder with a manifest is complete.
void remove_step(const fs::path& folder) {
  remove_tree(folder, manifest_name);
}

// True if the manifest is valid and every file has its size: the step was written and fsynced, but
// not renamed.
bool is_complete(const fs::path& folder) {
  try {
    const Manifest manifest = read_manifest(folder);
    for (const FileRecord& record : manifest.files) {
      if (File::open_for_reading(folder / record.name).size() != record.bytes) return false;
    }
    return true;
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    return false;
  }
}

bool has_manifest(const fs::path& folder) {
  std::error_code error;
  return fs::exists(fs::symlink_status(folder / manifest_name, error));
}

// True if the step at this path is the save with this id.
bool holds_save(const fs::path& step, const std::string& save_id) {
  try {
    return read_manifest(step).save_id == save_id;
  } catch (const Error&) {
    return false;
  }
}

fs::path free_name(const fs::path& dir, std::int64_t step, const std::string& run) {
  std::error_code error;
  for (int copy = 0;; ++copy) {
    fs::path path = dir / aside_name(step, run, copy);
    if (!fs::exists(fs::symlink_status(path, error))) return path;
  }
}

}  // namespace

std::string new_run() {
  std::random_device random;
  return to_hex((static_cast<std::uint64_t>(random()) << 32) | random());
}

std::string partial_name(std::int64_t step, const std::string& save_id) {
  return fmt::format("{}.partial-{}", step_name(step), save_id);
}

bool is_leftover_name(std::string_view name) {
  const auto dot = name.find('.');
  if (dot == std::string_view::npos || !parse_step_name(name.substr(0, dot))) return false;
  for (const std::string_view kind : {".partial-", ".removed-"}) {
    if (name.substr(dot).starts_with(kind)) return is_hex_id(name.substr(dot + kind.size()));
  }
  return false;
}

std::vector<std::string> settle_leftovers(const fs::path& dir, bool clear) {
  std::vector<std::string> trouble;
  // In ascending order of names: a new step (.partial-) comes before the step that it replaces
  // (.removed-).
  for (const std::string& name : names_in_folder(dir)) {
    const fs::path path = dir / name;
    if (!is_leftover_name(name) || !is_real_folder(path)) continue;
    try {
      const fs::path step = dir / name.substr(0, name.find('.'));
      std::error_code error;
      if (!fs::exists(fs::symlink_status(step, error)) && is_complete(path)) {
        rename_path(path, step);
        sync_folder(dir);
      } else if (clear) {
        std::string kept = remove_leftover(path, manifest_name);
        if (!kept.empty()) trouble.push_back(std::move(kept));
      }
    } catch (const SystemFailure& failure) {
      trouble.push_back(fmt::format("the leftover '{}' stays until the next save: {}",
                                    path.string(), failure.what()));
    }
  }
  return trouble;
}

std::vector<std::string> recover_for_reading(const fs::path& dir) {
  bool wanted = false;
  for (const std::string& name : names_in_folder(dir)) {
    wanted = wanted || (is_leftover_name(name) && has_manifest(dir / name) &&
                        !path_exists(dir / name.substr(0, name.find('.'))));
  }
  if (!wanted) return {};
  try {
    const FolderLock lock(dir);
    return settle_leftovers(dir, false);
  } catch (const Error& error) {
    return {fmt::format("a complete step that was never renamed stays as it is: {}", error.what())};
  }
}

PendingStep::PendingStep(const fs::path& dir, std::int64_t step, const std::string& save_id,
                         std::uint64_t needed_bytes, const Line& line,
                         std::chrono::milliseconds patience)
    : dir_(dir), partial_(dir / partial_name(step, save_id)) {
  saved_.step = step;
  saved_.path = dir / step_name(step);
  saved_.save_id = save_id;
  create_folders(dir_);
  lock_.emplace(dir_, patience);
  if (!lock_->warning().empty()) warnings_.push_back(lock_->warning());
  std::error_code error;
  TESSERA_CHECK(!fs::exists(fs::symlink_status(saved_.path, error)) ||
                    (is_real_folder(saved_.path) && has_manifest(saved_.path)),
                ErrorCode::checkpoint,
                "'{}' exists and is not a checkpoint of Tessera's; move it away or save elsewhere",
                saved_.path.string());
  for (std::string& trouble : settle_leftovers(dir_, true)) {
    warnings_.push_back(std::move(trouble));
  }
  listing_ = list_committed(dir_);
  place(line);
  const std::uint64_t available = free_bytes(dir_);
  TESSERA_CHECK(needed_bytes <= available, ErrorCode::checkpoint,
                "the checkpoint needs {} bytes, '{}' has {} free; free some space or choose "
                "another folder",
                needed_bytes, dir_.string(), available);
  create_folder(partial_);
  owns_partial_ = true;
}

// Determines the run that the step belongs to.
void PendingStep::place(const Line& line) {
  Lineage& lineage = saved_.lineage;
  lineage.commit = listing_.last_commit() + 1;
  lineage.launch = line.launch;
  if (!line.run.empty()) {
    TESSERA_REQUIRE(is_hex_id(line.run), "a run is 16 hexadecimal digits, and '{}' is not",
                    line.run);
    lineage.run = line.run;
    lineage.parent = line.parent;
    lineage.parent_commit = line.parent_commit;
    return;
  }
  const CommittedStep* last = listing_.steps.empty() ? nullptr : &listing_.steps.front();
  if (last == nullptr || last->step > saved_.step) {
    lineage.run = saved_.save_id;
    return;
  }
  lineage.run = last->lineage.run;
  lineage.parent = last->save_id;
  lineage.parent_commit = last->lineage.commit;
}

PendingStep::~PendingStep() {
  const std::string problem = roll_back();
  if (!problem.empty()) print_err("{}\n", problem);
}

std::string PendingStep::roll_back() noexcept {
  if (!owns_partial_) return {};
  owns_partial_ = false;
  try {
    remove_step(partial_);
    return {};
  } catch (const std::exception& error) {
    return fmt::format("the unfinished '{}' stays until the next save: {}", partial_.string(),
                       error.what());
  }
}

// First moves another run's step with this name to another name.
void PendingStep::take_name(const std::string& run_there) {
  const fs::path aside = free_name(dir_, saved_.step, run_there);
  rename_path(saved_.path, aside);
  sync_folder(dir_);
  try {
    rename_path(partial_, saved_.path);
  } catch (const Error&) {
    // If this fails as well, readers find the step under its new name.
    system_calls().rename(aside.c_str(), saved_.path.c_str());
    throw;
  }
  warnings_.push_back(fmt::format("'{}' belonged to another run; its step is now '{}'",
                                  saved_.path.string(), aside.filename().string()));
}

void PendingStep::publish() {
  const fs::path& target = saved_.path;
  const auto there = std::find_if(listing_.steps.begin(), listing_.steps.end(),
                                  [&](const CommittedStep& step) { return step.path == target; });
  try {
    if (!is_real_folder(target)) {
      rename_path(partial_, target);
    } else if (there != listing_.steps.end() && there->lineage.run == saved_.lineage.run) {
      fs::path removed = target;
      removed += ".removed-" + saved_.save_id;
      replaced_ = exchange_folders(partial_, target, removed);
    } else {
      take_name(there == listing_.steps.end() ? unnamed_run : there->lineage.run);
    }
    sync_folder(dir_);
  } catch (const Error& error) {
    if (!holds_save(target, saved_.save_id)) throw;
    owns_partial_ = false;
    fail(ErrorCode::checkpoint,
         "{}; {} is complete in its place, but a power failure may undo that", error.what(),
         step_name(saved_.step));
  }
  owns_partial_ = false;
}

void PendingStep::attempt(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    warnings_.push_back(fmt::format("{} is committed; {}", step_name(saved_.step), error.what()));
  }
}

void PendingStep::apply_retention(const Retention& retention) {
  for (const CommittedStep& old :
       superseded(listing_, saved_, retention.keep, retention.keep_best)) {
    if (!is_real_folder(old.path)) continue;
    attempt([&] {
      const fs::path aside = dir_ / fmt::format("{}.removed-{}", step_name(old.step), old.save_id);
      rename_path(old.path, aside);  // no partial step may remain under a step's name
      sync_folder(dir_);             // not after a power failure either
      remove_step(aside);
    });
  }
}

std::vector<std::string> PendingStep::commit(std::string_view manifest, const Retention& retention,
                                             std::optional<double> score) {
  saved_.score = score;
  write_file(partial_ / manifest_name, manifest);
  sync_folder(partial_);
  publish();
  attempt([&] { replace_file(dir_ / latest_name, step_name(saved_.step) + "\n"); });
  if (const CommittedStep* best = best_of(listing_, saved_);
      best != nullptr && retention.keep_best > 0) {
    attempt([&] { replace_file(dir_ / best_name, best->path.filename().string() + "\n"); });
  }
  if (!replaced_.empty()) attempt([&] { remove_step(replaced_); });
  apply_retention(retention);
  return std::exchange(warnings_, {});
}

}  // namespace tessera::checkpoint
