// An export is a save of the model alone, into a folder that is renamed to its name when complete.
#include "checkpoint/save/export.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "base/text/printable.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/folder_lock.h"
#include "checkpoint/io/removal.h"
#include "checkpoint/save/model_files.h"
#include "checkpoint/save/writer.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_export_file(const std::string& name) {
  return is_model_file(name) || is_weights_file(name, "model");
}

fs::path folder_above(const fs::path& folder) {
  return folder.parent_path().empty() ? fs::path(".") : folder.parent_path();
}

void check_free_bytes(const fs::path& folder, std::uint64_t needed) {
  const std::uint64_t available = free_bytes(folder);
  TESSERA_CHECK(needed <= available, ErrorCode::checkpoint,
                "the export needs {} bytes, '{}' has {} free; free some space or choose another "
                "folder",
                needed, folder.string(), available);
}

class ExportDestination final : public Destination {
 public:
  ExportDestination(fs::path folder, fs::path partial)
      : folder_(std::move(folder)), partial_(std::move(partial)) {}
  ~ExportDestination() override {
    const std::string problem = roll_back();
    if (!problem.empty()) print_err("{}\n", problem);
  }

  void prepare(std::uint64_t needed_bytes) override {
    check_export_folder(folder_);
    create_folders(folder_above(folder_));
    notes_ = clear_partials(folder_);
    check_free_bytes(folder_above(folder_), needed_bytes);
    create_folder(partial_);
    owns_partial_ = true;
    lock_ = LockedFolder::try_lock(partial_);
  }

  std::string commit(Manifest) override {
    sync_folder(partial_);
    check_export_folder(
        folder_);  // again: the export must not remove what another program put there meanwhile
    const fs::path above = folder_above(folder_);
    std::error_code error;
    if (fs::is_directory(fs::symlink_status(folder_, error))) {
      owns_partial_ = false;
      const fs::path old =
          exchange_folders(partial_, folder_, fs::path(partial_.string() + ".old"));
      sync_folder(above);
      remove_tree(old);
    } else {
      rename_path(partial_, folder_);
      owns_partial_ = false;
      sync_folder(above);
    }
    return saved_line("", 0, notes_);
  }

  std::string roll_back() noexcept override {
    if (!std::exchange(owns_partial_, false)) return {};
    try {
      remove_tree(partial_);
      return {};
    } catch (const std::exception& error) {
      return fmt::format("the unfinished '{}' stays: {}", partial_.string(), error.what());
    }
  }

 private:
  fs::path folder_;
  fs::path partial_;
  bool owns_partial_ = false;
  std::vector<std::string> notes_;    // about what dead exports left
  std::optional<LockedFolder> lock_;  // lets another export distinguish it from a dead one's
};

// "out/" and "out" are one folder.
fs::path without_slash(const std::string& folder) {
  const fs::path path(folder);
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

void check_export_folder(const std::string& folder) {
  std::error_code error;
  const fs::path path = without_slash(folder);
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return;
  TESSERA_CHECK(fs::is_directory(status), ErrorCode::checkpoint,
                "'{}' is not a folder; export to another place", path.string());
  const std::vector<std::string> unknown = unknown_files(path, is_export_file);
  TESSERA_CHECK(unknown.empty(), ErrorCode::checkpoint,
                "'{}' holds '{}', which no export wrote; export to another folder", path.string(),
                printable(unknown.front()));
}

void check_room_for_export(const std::string& folder, std::uint64_t bytes) {
  const fs::path above = folder_above(without_slash(folder));
  create_folders(above);
  check_writable(above);
  check_free_bytes(above, bytes);
}

std::vector<std::string> export_model(comm::Communicator& communicator, const std::string& folder,
                                      const std::vector<LogicalTensor>& model,
                                      const ExportOptions& options) {
  const fs::path target = without_slash(folder);
  SaveJob job;
  job.target = target;
  job.state.model = model;
  job.options.model_dtype = options.dtype;
  job.options.files = options.files;
  job.options.file_modes = options.file_modes;
  job.options.tensor_folders = options.tensor_folders;
  job.options.max_file_size = options.max_file_size;
  job.options.stall_timeout = options.stall_timeout;
  job.with_optimizer = false;
  job.partial = [target](const std::string& id) { return partial_beside(target, id); };
  job.destination = [target, partial = job.partial](const std::string& id) {
    return std::make_unique<ExportDestination>(target, partial(id));
  };
  return run_save(communicator, std::move(job)).warnings;
}

}  // namespace tessera::checkpoint
