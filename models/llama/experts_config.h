// The keys of mixtures of experts in config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/config/config_reader.h"
#include "models/llama/llama_config.h"

namespace tessera::models {

// The rows that all families with experts have. `count_key` is the key of their number.
void add_expert_rows(ConfigTable<LlamaConfig>& table, const char* count_key);
// Those that Qwen3-MoE has in addition.
void add_sparse_layer_rows(ConfigTable<LlamaConfig>& table);

// Those that gpt-oss has in addition.
void add_clamped_gate_rows(ConfigTable<LlamaConfig>& table);

// Converts to the family's key for the number of experts; transformers writes either.
nlohmann::json unified_experts(nlohmann::json config, const DecoderFamily& family);
void erase_other_spelling(nlohmann::json& config, const DecoderFamily& family);

// Reads what the table does not, and checks what concerns several keys.
void read_experts(const ConfigReader& reader, const nlohmann::json& config, LlamaConfig& c);
// Keys of experts and routers that the family does not have.
void refuse_other_experts(const ConfigReader& reader, const LlamaConfig& c);

}  // namespace tessera::models
