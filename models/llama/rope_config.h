// The keys of rotary positions in config.json, in both of its spellings.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/config/config_reader.h"
#include "models/llama/llama_config.h"

namespace tessera::models {

// Adds the rows of rope_theta and rope_scaling; `rope_types` are the supported kinds of scaling.
void add_rope_rows(ConfigTable<LlamaConfig>& table, const std::vector<std::string>& rope_types);

// Converts to one spelling: rope_theta, partial_rotary_factor, and rope_scaling with its rope_type.
// Sets `parameters` if the source used the newer spelling, rope_parameters.
nlohmann::json unified_rope(nlohmann::json config, bool& parameters);
// For errors about a configuration in the newer spelling.
ConfigSource with_rope_parameters(const ConfigSource& source);

// Checks what concerns several keys, and sets defaults that follow from others.
void check_rope(const ConfigReader& reader, LlamaConfig& config);

// rope_scaling, or null without scaling.
nlohmann::json scaling_to_json(const RopeScaling& scaling);

}  // namespace tessera::models
