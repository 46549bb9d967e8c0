// The names of files of which each rank has one: verl's (model_world_size_8_rank_0.pt,
// optim_world_size_8_rank_0.pt) and those of Accelerate's use_dcp=False
// (pytorch_model_fsdp_0_rank0.bin, optimizer_0_rank0.bin).
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::checkpoint::formats {

struct RankFiles {
  std::size_t world = 0;
  std::vector<std::filesystem::path> model, optimizer;  // by rank; no optimizer: empty
  std::vector<std::string> others;  // extra_state_world_size_8_rank_0.pt: names, sorted
};

// True if the folder has a model's file of any rank.
bool has_rank_files(const std::filesystem::path& folder);
// Error(checkpoint) that names the file if one is missing, and if the files are of several worlds.
// Accelerate's names have no size of the world: it is that of the largest rank.
RankFiles list_rank_files(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint::formats
