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

// Error(checkpoint) where two files are of one rank, or files of model-parallel ranks are there.
ZeroFiles list_zero_files(const std::filesystem::path& folder);
// `path` itself, or the folder beside its file `latest` that this names.
std::filesystem::path zero_tag_folder(const std::filesystem::path& path);
bool recognises_deepspeed(const std::filesystem::path& path);

}  // namespace tessera::checkpoint::formats
