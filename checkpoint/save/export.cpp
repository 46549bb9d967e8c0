// An export is a save of the model alone, into a folder that is renamed to its name when complete.
#include "checkpoint/save/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/folder_lock.h"
#include "checkpoint/save/writer.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

// The files that Hugging Face's tokenizers and generation need.
constexpr std::array<std::string_view, 13> model_file_names = {"tokenizer.json",
                                                               "tokenizer_config.json",
                                                               "special_tokens_map.json",
                                                               "added_tokens.json",
                                                               "vocab.json",
                                                               "vocab.txt",
                                                               "merges.txt",
                                                               "tokenizer.model",
                                                               "spiece.model",
                                                               "sentencepiece.bpe.model",
                                                               "chat_template.jinja",
                                                               "generation_config.json",
                                                               "preprocessor_config.json"};
// The largest tokenizers have tens of megabytes.
constexpr std::uint64_t model_file_limit = std::uint64_t{256} << 20;

// The folder of a module as Sentence Transformers names it: "1_Pooling".
bool is_module_folder(const std::string& name) {
  const auto digits = name.find_first_not_of("0123456789");
  return digits != 0 && digits != std::string::npos && name[digits] == '_';
}

bool is_export_file(const std::string& name) {
  return name == "config.json" || name == "modules.json" || name == "sentence_bert_config.json" ||
         name == "config_sentence_transformers.json" || is_module_folder(name) ||
         name == "model.safetensors.index.json" ||
         (name.starts_with("model") && name.ends_with(".safetensors")) ||
         std::find(model_file_names.begin(), model_file_names.end(), name) !=
             model_file_names.end();
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
    (void)clear_partials(folder_);
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
      return {};
    }
    rename_path(partial_, folder_);
    owns_partial_ = false;
    sync_folder(above);
    return {};
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
  fs::directory_iterator entries(path, error);
  TESSERA_CHECK(!error, ErrorCode::checkpoint, "cannot list '{}': {}", path.string(),
                error.message());
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename();
    TESSERA_CHECK(is_export_file(name), ErrorCode::checkpoint,
                  "'{}' holds '{}', which no export wrote; export to another folder", path.string(),
                  name);
    if (!is_module_folder(name) || !entry.is_directory(error)) continue;
    for (const fs::directory_entry& inner : fs::directory_iterator(entry.path(), error)) {
      const std::string file = inner.path().filename();
      TESSERA_CHECK(file == "config.json" || file == "model.safetensors", ErrorCode::checkpoint,
                    "'{}' holds '{}', which no export wrote; export to another folder",
                    entry.path().string(), file);
    }
  }
}

void check_room_for_export(const std::string& folder, std::uint64_t bytes) {
  const fs::path above = folder_above(without_slash(folder));
  create_folders(above);
  check_writable(above);
  check_free_bytes(above, bytes);
}

void export_model(comm::Communicator& communicator, const std::string& folder,
                  const std::vector<LogicalTensor>& model, const ExportOptions& options) {
  const fs::path target = without_slash(folder);
  SaveJob job;
  job.target = target;
  job.state.model = model;
  job.options.model_dtype = options.dtype;
  job.options.files = options.files;
  job.options.tensor_folders = options.tensor_folders;
  job.options.max_file_size = options.max_file_size;
  job.options.stall_timeout = options.stall_timeout;
  job.with_optimizer = false;
  job.partial = [target](const std::string& id) { return partial_beside(target, id); };
  job.destination = [target, partial = job.partial](const std::string& id) {
    return std::make_unique<ExportDestination>(target, partial(id));
  };
  (void)run_save(communicator, std::move(job));
}

std::map<std::string, std::string> read_model_files(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const std::string_view name : model_file_names) {
    const fs::path path = fs::path(folder) / name;
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    files.emplace(name, read_file(path, model_file_limit));
  }
  return files;
}

}  // namespace tessera::checkpoint
