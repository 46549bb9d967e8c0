// Finds the files of all ranks by their names.
#include "checkpoint/formats/torch/rank_files.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint::formats {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view model_kind = "model";
constexpr std::string_view optimizer_kind = "optim";
constexpr std::size_t world_limit = 1 << 16;

struct RankFileName {
  std::string kind;                 // "model"
  std::size_t world = 0, rank = 0;  // a world of 0: the name does not have it
};

// Accelerate's names begin with these.
struct NameWithoutWorld {
  std::string_view kind, beginning;
};
constexpr std::array<NameWithoutWorld, 2> names_without_world{
    {{model_kind, "pytorch_model_fsdp_0"}, {optimizer_kind, "optimizer_0"}}};

std::string rank_file_name(std::string_view kind, std::size_t world, std::size_t rank) {
  for (const NameWithoutWorld& name : names_without_world) {
    if (world == 0 && name.kind == kind) return fmt::format("{}_rank{}.bin", name.beginning, rank);
  }
  return fmt::format("{}_world_size_{}_rank_{}.pt", kind, world, rank);
}

// The number at the beginning of a text, which loses it.
std::optional<std::size_t> take_number(std::string_view& text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value > world_limit) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<RankFileName> parse_name_without_world(const std::string& name) {
  for (const auto& [kind, beginning] : names_without_world) {
    std::string_view rest = name;
    if (!rest.starts_with(beginning)) continue;
    rest.remove_prefix(beginning.size());
    constexpr std::string_view rank_mark = "_rank";
    if (!rest.starts_with(rank_mark)) return std::nullopt;
    rest.remove_prefix(rank_mark.size());
    const auto rank = take_number(rest);
    if (!rank || rank_file_name(kind, 0, *rank) != name) return std::nullopt;
    return RankFileName{std::string(kind), 0, *rank};
  }
  return std::nullopt;
}

std::optional<RankFileName> parse_rank_file_name(const std::string& name) {
  if (auto out = parse_name_without_world(name)) return out;
  constexpr std::string_view world_mark = "_world_size_";
  constexpr std::string_view rank_mark = "_rank_";
  const std::size_t at = name.find(world_mark);
  if (at == std::string::npos) return std::nullopt;
  std::string_view rest = std::string_view(name).substr(at + world_mark.size());
  const auto world = take_number(rest);
  if (!world || !rest.starts_with(rank_mark)) return std::nullopt;
  rest.remove_prefix(rank_mark.size());
  const auto rank = take_number(rest);
  if (!rank) return std::nullopt;
  RankFileName out{name.substr(0, at), *world, *rank};
  if (rank_file_name(out.kind, out.world, out.rank) != name) return std::nullopt;
  return out;
}

// The files of one kind, of which there is at least one. `named`: the world in their names, or 0.
std::vector<fs::path> complete_files(const fs::path& folder, std::string_view kind,
                                     std::size_t named, std::size_t world,
                                     const std::set<std::size_t>& ranks) {
  std::vector<fs::path> files;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const std::string name = rank_file_name(kind, named, rank);
    TESSERA_CHECK(ranks.contains(rank), ErrorCode::checkpoint,
                  "'{}': {}, the file of rank {} of {}, is missing, without which tensors are not "
                  "whole{}",
                  folder.string(), name, rank, world,
                  kind == model_kind ? ""
                                     : "; to convert the weights alone, take the other ranks' "
                                       "optimizer files out of the folder");
    files.push_back(folder / name);
  }
  return files;
}

}  // namespace

bool has_rank_files(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const auto name = parse_rank_file_name(entry.path().filename().string());
    if (name && name->kind == model_kind) return true;
  }
  return false;
}

RankFiles list_rank_files(const fs::path& folder) {
  RankFiles out;
  std::map<std::string, std::set<std::size_t>> ranks;  // by kind
  std::optional<std::size_t> named;                    // the world in the names
  std::string first;
  for (const std::string& file : names_in_folder(folder)) {
    const auto name = parse_rank_file_name(file);
    if (!name) continue;
    TESSERA_CHECK(name->world == 0 || name->rank < name->world, ErrorCode::checkpoint,
                  "'{}': {} is the file of a rank that its world does not have", folder.string(),
                  shown(file));
    TESSERA_CHECK(!named || (*named == 0) == (name->world == 0), ErrorCode::checkpoint,
                  "'{}' has files of two saves ({}, {}): keep those of one", folder.string(),
                  shown(first), shown(file));
    TESSERA_CHECK(!named || *named == name->world, ErrorCode::checkpoint,
                  "'{}' has files of {} ranks and of {} ({}, {}): keep those of one save",
                  folder.string(), *named, name->world, shown(first), shown(file));
    named = name->world;
    out.world = std::max(name->world, out.world);
    if (name->world == 0) out.world = std::max(name->rank + 1, out.world);
    first = file;
    ranks[name->kind].insert(name->rank);
    if (name->kind != model_kind && name->kind != optimizer_kind) out.others.push_back(file);
  }
  const std::size_t in_names = named.value_or(0);
  std::sort(out.others.begin(), out.others.end());
  out.model =
      complete_files(folder, model_kind, in_names, out.world, ranks[std::string(model_kind)]);
  if (const auto found = ranks.find(std::string(optimizer_kind)); found != ranks.end()) {
    out.optimizer = complete_files(folder, optimizer_kind, in_names, out.world, found->second);
  }
  return out;
}

}  // namespace tessera::checkpoint::formats
