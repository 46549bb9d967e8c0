// The files of a DeepSpeed folder, by rank.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>

namespace tessera::checkpoint::formats {

struct ZeroFiles {
  std::filesystem::path folder;
  std::map<std::size_t, std::filesystem::path> optimizer, model;  // by data-parallel rank
};

// Throws Error(checkpoint) if two files belong to one rank, or if there are files of model-parallel
// ranks.
ZeroFiles list_zero_files(const std::filesystem::path& folder);
// `path` itself, or the folder in it that its file of the name `latest` names.
std::filesystem::path zero_tag_folder(const std::filesystem::path& path,
                                      const char* latest = "latest");
bool recognises_deepspeed(const std::filesystem::path& path);

}  // namespace tessera::checkpoint::formats
