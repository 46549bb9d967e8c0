// The names of files beside weights.
#include "checkpoint/formats/beside.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"

namespace tessera::checkpoint::formats {

namespace {

namespace fs = std::filesystem;

// Names of the regular files of a folder, sorted; none if it cannot be read, which opening it
// reports.
std::vector<std::string> file_names(const fs::path& folder,
                                    const std::function<bool(std::string_view)>& wanted) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (wanted(name) && entry.is_regular_file(error)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> first_flat_shard(const fs::path& folder) {
  const std::vector<std::string> names = file_names(folder, [](std::string_view name) {
    return name.starts_with("pytorch_model_fsdp") && name.ends_with(".bin") &&
           name.find("_rank") != std::string_view::npos;
  });
  return names.empty() ? std::nullopt : std::optional(names.front());
}

}  // namespace

bool belongs_to_model(std::string_view name) {
  constexpr std::array<std::string_view, 7> endings{".json",  ".txt",      ".model", ".jinja",
                                                    ".vocab", ".tiktoken", ".bpe"};
  if (name.starts_with('.') || name.ends_with(".index.json")) return false;
  return name == "README.md" || std::any_of(endings.begin(), endings.end(),
                                            [&](auto ending) { return name.ends_with(ending); });
}

bool has_flat_shards(const fs::path& folder) {
  return first_flat_shard(folder).has_value();
}

void refuse_flat_shards(const fs::path& folder) {
  const std::optional<std::string> name = first_flat_shard(folder);
  TESSERA_CHECK(!name, ErrorCode::checkpoint,
                "'{}' was saved with LOCAL_STATE_DICT: {} and the other ranks' files hold FSDP's "
                "flat parameters, without the names and shapes of their parts; load it with the "
                "program that saved it, on as many ranks, and save it again with "
                "SHARDED_STATE_DICT or FULL_STATE_DICT",
                folder.string(), shown(*name));
}

std::string optimizer_file_in(const fs::path& folder) {
  const std::vector<std::string> names = file_names(folder, [](std::string_view name) {
    return name.starts_with("optimizer") &&
           (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth"));
  });
  return names.empty() ? "" : names.front();
}

std::string unread_state_note(const std::string& file) {
  return fmt::format(
      "not read: {}, the state of an optimizer whose parameters have numbers for names, and the "
      "weights do not tell which is which",
      shown(file));
}

std::vector<std::string> other_safetensors_in(const fs::path& folder,
                                              const std::vector<std::string>& used) {
  return file_names(folder, [&](std::string_view name) {
    return name.ends_with(".safetensors") &&
           std::find(used.begin(), used.end(), name) == used.end();
  });
}

}  // namespace tessera::checkpoint::formats
