// The keys of rotary positions in config.json, in both of its spellings.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/config/config_reader.h"
#include "models/llama/llama_config.h"

namespace tessera::models {

// Adds the rows of rope_theta and rope_scaling; `rope_types` are the supported kinds of scaling,
// and `fallback` is the family's own scaling.
void add_rope_rows(ConfigTable<LlamaConfig>& table, const std::vector<std::string>& rope_types,
                   const RopeScaling& fallback);

// Converts to one spelling: rope_theta, partial_rotary_factor, and rope_scaling with its rope_type.
// Sets `parameters` if the source used the newer spelling, rope_parameters.
nlohmann::json unified_rope(nlohmann::json config, bool& parameters);
// Adds the scaling that a family has unless its configuration says otherwise; null counts as
// absent.
nlohmann::json with_default_scaling(nlohmann::json config, const DecoderFamily& family);
// For errors about a configuration in the newer spelling.
ConfigSource with_rope_parameters(const ConfigSource& source);

// Checks what concerns several keys, and sets defaults that follow from others.
void check_rope(const ConfigReader& reader, LlamaConfig& config);

// rope_scaling; without scaling it is null, or says so where the family has one by default.
nlohmann::json scaling_to_json(const RopeScaling& scaling, const DecoderFamily& family);

}  // namespace tessera::models
