// Sliding windows in config.json: of all layers, or of some.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/config/config_reader.h"
#include "models/llama/llama_config.h"

namespace tessera::models {

void add_window_row(ConfigTable<LlamaConfig>& table);
// The rows of a family whose layers differ in windows and rotary frequencies: Gemma 3.
void add_local_rows(ConfigTable<LlamaConfig>& table);

// Reads `layer_types`, where the family has layers of both kinds.
void read_windows(const ConfigReader& reader, const nlohmann::json& config, LlamaConfig& c);
// Writes `layer_types`, for a family without a key for the pattern.
void write_layer_types(const LlamaConfig& c, nlohmann::json& config);
// Refuses `layer_types` of another family, and kinds of attention that no family here has.
void refuse_other_windows(const ConfigReader& reader, const nlohmann::json& config,
                          const LlamaConfig& c);

// transformers 5 writes rotary positions by kind of layer: {"full_attention": {...},
// "sliding_attention": {...}}. The result has the keys of the others, and rope_local_base_freq.
nlohmann::json unified_layer_ropes(nlohmann::json config, const ConfigSource& source);

}  // namespace tessera::models
