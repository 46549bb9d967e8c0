// Names by pattern, and the reading of small files.
#include "checkpoint/save/model_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

// The files that Hugging Face's tokenizers and generation need.
constexpr std::array<std::string_view, 15> carried_file_names = {"tokenizer.json",
                                                                 "tokenizer_config.json",
                                                                 "special_tokens_map.json",
                                                                 "added_tokens.json",
                                                                 "vocab.json",
                                                                 "vocab.txt",
                                                                 "merges.txt",
                                                                 "tokenizer.model",
                                                                 "spiece.model",
                                                                 "sentencepiece.bpe.model",
                                                                 "tekken.json",
                                                                 "tiktoken.model",
                                                                 "chat_template.jinja",
                                                                 "generation_config.json",
                                                                 "preprocessor_config.json"};
constexpr std::array<std::string_view, 4> config_file_names = {"config.json", "modules.json",
                                                               "sentence_bert_config.json",
                                                               "config_sentence_transformers.json"};
// The largest tokenizers have tens of megabytes.
constexpr std::uint64_t carried_file_limit = std::uint64_t{256} << 20;
constexpr std::size_t most_unknown_files = 4;

bool is_carried_file(std::string_view name) {
  const auto* const found = std::find(carried_file_names.begin(), carried_file_names.end(), name);
  const bool has_ranks = name.ends_with(".tiktoken") && !name.starts_with('.') &&
                         name.find('/') == std::string_view::npos;
  return found != carried_file_names.end() || has_ranks;
}

// The name without the module's folder that it is in; empty: it is in another folder.
std::string_view name_in_module(std::string_view name) {
  const auto slash = name.find('/');
  if (slash == std::string_view::npos || !is_module_folder(name.substr(0, slash))) return {};
  return name.substr(slash + 1);
}

// True for "00001-of-00002".
bool is_number_of_files(std::string_view text) {
  const auto middle = text.find("-of-");
  const auto is_number = [](std::string_view digits) {
    return digits.size() >= 5 && digits.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return middle != std::string_view::npos && is_number(text.substr(0, middle)) &&
         is_number(text.substr(middle + 4));
}

void add_unknown_files(const fs::path& folder, const std::string& prefix,
                       const std::function<bool(const std::string& name)>& known,
                       std::vector<std::string>& unknown) {
  const std::vector<std::string> names = names_in_folder(folder);
  const bool may_be_empty = prefix.empty() || is_module_folder(folder.filename().string());
  if (names.empty() && !may_be_empty) unknown.push_back(prefix);
  for (const std::string& name : names) {
    if (unknown.size() >= most_unknown_files) return;
    std::error_code error;
    if (fs::is_directory(fs::symlink_status(folder / name, error))) {
      add_unknown_files(folder / name, prefix + name + "/", known, unknown);
    } else if (!known(prefix + name)) {
      unknown.push_back(prefix + name);
    }
  }
}

}  // namespace

bool is_module_folder(std::string_view name) {
  const auto digits = name.find_first_not_of("0123456789");
  return digits != 0 && digits != std::string_view::npos && name[digits] == '_';
}

bool is_model_file(std::string_view name) {
  const bool is_config = std::find(config_file_names.begin(), config_file_names.end(), name) !=
                         config_file_names.end();
  return is_config || is_carried_file(name) || name_in_module(name) == "config.json";
}

bool is_weights_file(std::string_view name, std::string_view stem) {
  if (name_in_module(name) == "model.safetensors") return true;
  if (!name.starts_with(stem)) return false;
  name.remove_prefix(stem.size());
  constexpr std::string_view ending = ".safetensors", of_ranks = "rank-";
  if (name == ending || name == ".safetensors.index.json") return true;
  if (!name.starts_with('-') || !name.ends_with(ending)) return false;
  name.remove_prefix(1);
  name.remove_suffix(ending.size());
  if (name.starts_with(of_ranks)) name.remove_prefix(of_ranks.size());
  return is_number_of_files(name);
}

std::vector<std::string> unknown_files(const std::string& folder,
                                       const std::function<bool(const std::string& name)>& known) {
  std::vector<std::string> unknown;
  add_unknown_files(folder, "", known, unknown);
  return unknown;
}

ModelFiles read_model_files(const std::string& folder) {
  ModelFiles files;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return files;
  for (const std::string& name : names_in_folder(folder)) {
    if (!is_carried_file(name) || !path_exists(fs::path(folder) / name)) continue;
    const File file = open_member(folder, name);
    files.contents[name] = read_whole(file, carried_file_limit);
    files.modes[name] = file.mode();
  }
  for (const std::string_view view : config_file_names) {
    const std::string name(view);
    if (path_exists(fs::path(folder) / name)) files.modes[name] = open_member(folder, name).mode();
  }
  return files;
}

}  // namespace tessera::checkpoint
