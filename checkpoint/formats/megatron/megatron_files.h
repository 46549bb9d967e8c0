// The files of a Megatron folder beside the tensors.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/formats/pieces.h"

namespace tessera::checkpoint::formats {

inline constexpr const char* megatron_common_name = "common.pt";
// Files whose names are like those of a model, and that belong to Megatron.
inline constexpr std::array megatron_small_files{
    "metadata.json", "latest_checkpointed_iteration.txt", "progress.txt", "integrity.json"};

// `path` itself, or the folder in it that latest_checkpointed_iteration.txt names.
std::filesystem::path megatron_folder(const std::filesystem::path& path);
// True for a folder of Megatron's, also of its forms that are not read.
bool recognises_megatron(const std::filesystem::path& path);
// Error(checkpoint) for a form other than torch_dist.
void require_megatron_backend(const std::filesystem::path& folder);

// "args" and "iteration" of common.pt, and as "step" the steps that its optimizer has done, as far
// as it has them; empty: there is no such file. Nothing in it is executed.
nlohmann::json read_megatron_common(PieceStore& store, const std::filesystem::path& folder);
// The tokens of a tokenizer.json; 0: it has no list of them.
std::int64_t tokens_in_tokenizer(const std::filesystem::path& file);

}  // namespace tessera::checkpoint::formats
