// From a partial folder to a committed step, and from old steps to free space. At every moment
// either the old or the new state is on disk: a step appears by one rename and disappears by one
// rename.
#include "checkpoint/commit.h"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <utility>

#include "checkpoint/manifest.h"
#include "kernels/base/error.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view step_prefix = "step-";
constexpr std::string_view lock_name = ".lock";
constexpr std::string_view latest_name = "latest";

std::vector<std::string> names_in(const fs::path& dir) {
  std::error_code error;
  fs::directory_iterator entries(dir, error);
  TESSERA_CHECK(!error, ErrorCode::checkpoint, "cannot list '{}': {}", dir.string(),
                error.message());
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : entries) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

bool is_real_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error));
}

bool has_manifest(const fs::path& step_folder) {
  std::error_code error;
  return fs::exists(fs::symlink_status(step_folder / manifest_name, error));
}

// Of the other committed steps the highest stay; what is not a committed step is left alone.
void apply_retention(const fs::path& dir, std::int64_t saved, int keep,
                     const std::string& save_id) {
  int kept = 1;
  for (const StepFolder& folder : list_steps(dir)) {
    if (folder.step == saved || !is_real_folder(folder.path) || !has_manifest(folder.path)) {
      continue;
    }
    if (++kept <= keep) continue;
    fs::path aside = folder.path;
    aside += ".removed-" + save_id;
    rename_path(folder.path, aside);  // never half a step under a step's name
    sync_folder(dir);                 // not after a power failure either
    remove_tree(aside);
  }
}

}  // namespace

std::string step_name(std::int64_t step) {
  return fmt::format("{}{}", step_prefix, step);
}

std::string partial_name(std::int64_t step, const std::string& save_id) {
  return fmt::format("{}.partial-{}", step_name(step), save_id);
}

std::optional<std::int64_t> parse_step_name(std::string_view name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  const std::string_view digits = name.substr(step_prefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return step >= 0 && name == step_name(step) ? std::optional(step) : std::nullopt;
}

bool is_leftover_name(std::string_view name) {
  const auto dot = name.find('.');
  if (dot == std::string_view::npos || !parse_step_name(name.substr(0, dot))) return false;
  for (const std::string_view kind : {".partial-", ".removed-"}) {
    if (!name.substr(dot).starts_with(kind)) continue;
    const std::string_view id = name.substr(dot + kind.size());
    return id.size() == 16 && id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  }
  return false;
}

std::vector<StepFolder> list_steps(const fs::path& dir) {
  std::vector<StepFolder> steps;
  for (const std::string& name : names_in(dir)) {
    if (const auto step = parse_step_name(name)) steps.push_back({*step, dir / name});
  }
  std::sort(steps.begin(), steps.end(),
            [](const StepFolder& a, const StepFolder& b) { return a.step > b.step; });
  return steps;
}

PendingStep::PendingStep(const fs::path& dir, std::int64_t step, const std::string& save_id,
                         std::uint64_t needed_bytes)
    : dir_(dir), step_(step), partial_(dir / partial_name(step, save_id)), save_id_(save_id) {
  create_folders(dir_);
  lock_.emplace(File::create_or_truncate(dir_ / lock_name));
  TESSERA_CHECK(lock_->try_lock(), ErrorCode::checkpoint,
                "another run is saving into '{}' at this moment; give each run its own folder",
                dir_.string());
  const fs::path target = dir_ / step_name(step_);
  std::error_code error;
  TESSERA_CHECK(!fs::exists(fs::symlink_status(target, error)) ||
                    (is_real_folder(target) && has_manifest(target)),
                ErrorCode::checkpoint,
                "'{}' exists and is not a checkpoint of Tessera's; move it away or save elsewhere",
                target.string());
  for (const std::string& name : names_in(dir_)) {
    // With the lock held, whoever made it is dead.
    if (is_leftover_name(name) && is_real_folder(dir_ / name)) remove_tree(dir_ / name);
  }
  const std::uint64_t available = free_bytes(dir_);
  TESSERA_CHECK(needed_bytes <= available, ErrorCode::checkpoint,
                "the checkpoint needs {} bytes, '{}' has {} free; free some space or choose "
                "another folder",
                needed_bytes, dir_.string(), available);
  create_folder(partial_);
  owns_partial_ = true;
}

PendingStep::~PendingStep() {
  const std::string problem = roll_back();
  if (!problem.empty()) std::fprintf(stderr, "%s\n", problem.c_str());
}

std::string PendingStep::roll_back() noexcept {
  if (!owns_partial_) return {};
  owns_partial_ = false;
  try {
    remove_tree(partial_);
    return {};
  } catch (const std::exception& error) {
    return fmt::format("the unfinished '{}' stays until the next save: {}", partial_.string(),
                       error.what());
  }
}

void PendingStep::publish() {
  const fs::path target = dir_ / step_name(step_);
  if (is_real_folder(target)) {
    // The same step of an earlier attempt. Once exchanged, what bears the partial name is the old
    // one.
    owns_partial_ = false;
    replace_folder(partial_, target);
    return;
  }
  rename_path(partial_, target);
  owns_partial_ = false;
  sync_folder(dir_);
}

void PendingStep::commit(std::string_view manifest, int keep) {
  write_file(partial_ / manifest_name, manifest);
  sync_folder(partial_);
  publish();
  try {
    replace_file(dir_ / latest_name, step_name(step_) + "\n");
    if (keep > 0) apply_retention(dir_, step_, keep, save_id_);
  } catch (const Error& error) {
    fail(ErrorCode::checkpoint, "{}; {} itself is committed and complete", error.what(),
         step_name(step_));
  }
}

}  // namespace tessera::checkpoint
