// Distinguishes a missing folder from a name of the Hugging Face Hub.
#include "models/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/error.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

bool is_hub_word(std::string_view word) {
  constexpr std::string_view letters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !word.empty() && word.front() != '.' && word.find_first_not_of(letters) == word.npos;
}

// True for "gpt2" or "org/model" if no folder "org" exists here.
bool may_be_hub_name(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == name.npos) return is_hub_word(name);
  std::error_code error;
  return is_hub_word(name.substr(0, slash)) && is_hub_word(name.substr(slash + 1)) &&
         !fs::exists(fs::path(name.substr(0, slash)), error);
}

}  // namespace

std::string missing_folder_text(const std::string& folder) {
  std::error_code error;
  if (fs::exists(folder, error)) {
    return fmt::format("{}: no such folder, but a file; name the folder of a model", folder);
  }
  if (!may_be_hub_name(folder)) return fmt::format("{}: no such folder", folder);
  return fmt::format(
      "{0}: no such folder; nothing is downloaded here: hf download {0} --local-dir {1}, and name "
      "the folder {1}",
      folder, folder.substr(folder.find('/') + 1));
}

void require_model_folder(const std::string& folder) {
  std::error_code error;
  TESSERA_CHECK(fs::is_directory(folder, error), ErrorCode::checkpoint, "{}",
                missing_folder_text(folder));
}

}  // namespace tessera::models
