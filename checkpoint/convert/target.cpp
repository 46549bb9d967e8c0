// The partial folder, its lock, and the rename to the target.
#include "checkpoint/convert/target.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "base/text/printable.h"
#include "checkpoint/formats/deepspeed/universal.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/folder_lock.h"
#include "checkpoint/io/removal.h"
#include "checkpoint/save/model_files.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

// Suffix of the old folder's name during a replacement without atomic exchange.
constexpr std::string_view aside_suffix = ".removed-0000000000000000";

std::string random_id() {
  std::random_device random;
  return to_hex((static_cast<std::uint64_t>(random()) << 32) | random());
}

// Removes the old folder once the fresh one is durable in its place.
void replace_folder(const fs::path& fresh, const fs::path& old) {
  const fs::path aside = old.string() + std::string(aside_suffix);
  const fs::path replaced = exchange_folders(fresh, old, aside);
  sync_folder(fs::absolute(old).parent_path());
  remove_tree(replaced);
}

bool present(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

bool is_conversion_file(const std::string& name) {
  return name == manifest_name || name == ".metadata" || is_model_file(name) ||
         is_weights_file(name, "model") || is_weights_file(name, "optimizer") ||
         (name.starts_with("__") && name.ends_with(".distcp")) || formats::is_universal_file(name);
}

// Tessera wrote the files that a step's manifest lists.
std::set<std::string> listed_files(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  if (!fs::is_regular_file(folder / manifest_name, error)) return names;
  try {
    for (const FileRecord& file : read_manifest(folder).files) names.insert(file.name);
  } catch (const Error&) {
    return {};  // it is damaged, and the names that every conversion writes must do
  }
  return names;
}

// Throws if a folder holds anything that no conversion wrote.
void check_contents(const fs::path& target, const std::set<std::string>& carried) {
  const std::set<std::string> listed = listed_files(target);
  std::vector<std::string> unknown = unknown_files(target, [&](const std::string& name) {
    return is_conversion_file(name) || listed.contains(name) || carried.contains(name);
  });
  if (unknown.empty()) return;
  constexpr std::size_t shown = 3;
  const bool more = unknown.size() > shown;
  unknown.resize(std::min(unknown.size(), shown));
  for (std::string& name : unknown) name = fmt::format("'{}'", printable(name));
  fail(ErrorCode::checkpoint,
       "'{}' holds {}{}, which no conversion wrote, and --force replaces only checkpoints; move {} "
       "away or choose another place",
       target.string(), fmt::join(unknown, ", "), more ? " and more" : "",
       more || unknown.size() > 1 ? "them" : "it");
}

// Only a checkpoint may be replaced, so that a typing error does not remove a home folder.
void check_replaceable(const fs::path& target, const std::set<std::string>& carried) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(target, error);
  if (fs::is_directory(status) && fs::is_empty(target, error) && !error) return;
  bool known = false;
  for (const formats::Format& format : formats::formats()) {
    known = known || format.recognises(target);
  }
  TESSERA_CHECK(
      known, ErrorCode::checkpoint,
      "'{}' is not a checkpoint, and --force replaces only checkpoints; remove it yourself or "
      "choose another place",
      target.string());
  if (fs::is_directory(status)) check_contents(target, carried);
}

}  // namespace

fs::path named_target(const fs::path& target) {
  fs::path named = target.has_filename() ? target : target.parent_path();
  TESSERA_CHECK(is_plain_name(named.filename().string()), ErrorCode::usage,
                "'{}' does not name a checkpoint; add a name to the path", target.string());
  return named;
}

PendingTarget::PendingTarget(const fs::path& target, bool is_file, bool force,
                             std::uint64_t needed_bytes, std::set<std::string> carried)
    : target_(named_target(target)),
      is_file_(is_file),
      force_(force),
      carried_(std::move(carried)) {
  const std::string name = target_.filename().string();
  parent_ = target_.parent_path().empty() ? fs::path(".") : target_.parent_path();
  check_place();
  create_folders(parent_);
  restore_old();
  for (std::string& line : clear_partials(target_)) notes_.push_back(std::move(line));
  const std::uint64_t available = free_bytes(parent_);
  TESSERA_CHECK(needed_bytes <= available, ErrorCode::checkpoint,
                "the result needs {} bytes, '{}' has {} free; free some space or choose another "
                "folder",
                needed_bytes, parent_.string(), available);
  partial_ = partial_beside(parent_ / name, random_id());
  create_folder(partial_);
  owns_partial_ = true;
  lock_ = LockedFolder::try_lock(partial_);
  payload_ = is_file_ ? partial_ / name : partial_;
}

PendingTarget::~PendingTarget() {
  const std::string problem = roll_back();
  if (!problem.empty()) print_err("{}\n", problem);
}

// Repairs a replacement in two renames that ended between them.
void PendingTarget::restore_old() {
  fs::path aside = target_;
  aside += aside_suffix;
  if (!present(aside)) return;
  if (present(target_)) {
    std::string kept = remove_leftover(aside);
    if (!kept.empty()) notes_.push_back(std::move(kept));
    return;
  }
  rename_path(aside, target_);
  sync_folder(parent_);
  fail(ErrorCode::checkpoint,
       "a conversion that was replacing '{}' was interrupted; the old one is back in its place: "
       "run it "
       "again, with --force",
       target_.string());
}

// Runs before the first byte, and again before the rename: a conversion takes long, and another
// program may have created the target by then.
void PendingTarget::check_place() const {
  if (!present(target_)) return;
  std::error_code error;
  const fs::file_status status = fs::symlink_status(target_, error);
  TESSERA_CHECK(fs::is_directory(status) || fs::is_regular_file(status), ErrorCode::checkpoint,
                "'{}' is {}, and a checkpoint is a file or a folder with a name of its own; choose "
                "another place",
                target_.string(), fs::is_symlink(status) ? "a link" : "a device or a pipe");
  TESSERA_CHECK(force_, ErrorCode::checkpoint,
                "'{}' exists; choose another place, or --force to replace it", target_.string());
  check_replaceable(target_, carried_);
}

void PendingTarget::publish() {
  check_place();
  if (!is_file_) {
    if (present(target_)) {
      owns_partial_ = false;
      replace_folder(partial_, target_);
    } else {
      rename_path(partial_, target_);
      owns_partial_ = false;
      sync_folder(parent_);
    }
    return;
  }
  sync_folder(partial_);
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(target_, error))) {
    replace_folder(payload_, target_);
  } else {
    rename_path(payload_, target_);
  }
  sync_folder(parent_);
  const std::string problem = roll_back();  // the empty folder
  if (!problem.empty()) notes_.push_back(problem);
}

std::string PendingTarget::roll_back() noexcept {
  std::string problem;
  if (std::exchange(owns_partial_, false)) {
    try {
      remove_tree(partial_);
    } catch (const std::exception& error) {
      problem =
          fmt::format("'{}' stays until the next conversion: {}", partial_.string(), error.what());
    }
  }
  lock_.reset();
  return problem;
}

}  // namespace tessera::checkpoint
