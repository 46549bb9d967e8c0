// Classifies the files of a DeepSpeed folder by their names.
#include "checkpoint/formats/deepspeed/zero_files.h"

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/io/file.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view optimizer_ending = "_optim_states.pt";
constexpr std::string_view model_ending = "model_states.pt";
constexpr std::size_t ranks_limit = 1 << 16;

// The number that follows `mark` in a file's name.
std::optional<std::size_t> number_after(std::string_view name, std::string_view mark) {
  const std::size_t at = name.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  std::size_t value = 0;
  const char* first = name.data() + at + mark.size();
  const auto [end, error] = std::from_chars(first, name.data() + name.size(), value);
  if (error != std::errc{} || end == first || value >= ranks_limit) return std::nullopt;
  return value;
}

}  // namespace

ZeroFiles list_zero_files(const fs::path& folder) {
  ZeroFiles files{folder, {}, {}};
  for (const std::string& name : names_in_folder(folder)) {
    const bool optimizer = name.ends_with(optimizer_ending);
    if (!optimizer && !name.ends_with(model_ending)) continue;
    if (number_after(name, "mp_rank_").value_or(0) != 0) {
      fail(ErrorCode::checkpoint,
           "'{}' has files of several model-parallel ranks ({}), which are not joined: make a "
           "universal checkpoint without tensor parallelism first",
           folder.string(), shown(name));
    }
    const std::size_t rank = number_after(name, "zero_pp_rank_").value_or(0);
    auto& list = optimizer ? files.optimizer : files.model;
    TESSERA_CHECK(list.emplace(rank, folder / name).second, ErrorCode::checkpoint,
                  "'{}' has two files of rank {}: {} and {}", folder.string(), rank, shown(name),
                  shown(list[rank].filename().string()));
  }
  return files;
}

// The folder itself, or the one that its file `latest` names.
fs::path zero_tag_folder(const fs::path& path, const char* latest) {
  std::error_code error;
  if (!fs::is_regular_file(path / latest, error)) return path;
  std::string tag = read_file(path / latest, 4096);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' ')) {
    tag.pop_back();
  }
  TESSERA_CHECK(is_plain_name(tag), ErrorCode::checkpoint,
                "'{}' names {}, which is not a folder beside it", (path / latest).string(),
                shown(tag));
  return path / tag;
}

bool recognises_deepspeed(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return false;
  try {
    const fs::path folder = zero_tag_folder(path);
    if (!fs::is_directory(folder, error)) return false;
    for (const std::string& name : names_in_folder(folder)) {
      if (name.ends_with(optimizer_ending) || name.ends_with("mp_rank_00_model_states.pt")) {
        return true;
      }
    }
  } catch (const Error&) {
    return false;  // a file `latest` of another program
  }
  return false;
}

}  // namespace tessera::checkpoint::formats
