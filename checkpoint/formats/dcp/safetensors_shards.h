// The ranks' files of PyTorch's HuggingFaceStorageWriter with save_distributed (torchtitan, NeMo):
// shard-00002-model-00001-of-00004.safetensors holds rank 1's parts of the tensors of file 1, and
// in its metadata, under DCP_SHARDING_INFO, the offsets of each part in its tensor.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

// False for a folder that also has whole tensors, which are read instead.
bool has_safetensors_shards(const std::filesystem::path& folder);

// Joins the parts. The files do not say how large a tensor is, nor how many ranks there were: a
// tensor ends where its last part ends, and a hole in it is an Error(checkpoint). If config.json is
// there, its vocab_size and hidden_size must not be larger than the table of tokens.
std::unique_ptr<Source> open_safetensors_shards(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint::formats
