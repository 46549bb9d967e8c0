// Compares a configuration with the weights beside it before anything is allocated: config.json may
// be anybody's, and a few bytes of it can ask for any amount of memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace tessera::models {

// Reads the headers of the folder's weights. Throws Error(checkpoint) with the key, its value and
// what the weights have, if `config` describes more layers, a wider tensor or many more parameters
// than they can hold. Without weights there, it does nothing: a plan needs none.
void check_weights_bound(const std::filesystem::path& folder, const nlohmann::json& config);
// The same for one matrix of a module's folder.
void check_matrix_bound(const std::filesystem::path& folder, std::int64_t rows,
                        std::int64_t columns);

}  // namespace tessera::models
