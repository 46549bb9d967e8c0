// Models of Llama's build with other defaults.
#pragma once

#include "models/llama/llama_config.h"

namespace tessera::models {

// A sliding window in its first version.
struct MistralConfig {
  static LlamaConfig parse(const nlohmann::json& config, const ConfigSource& source);
  static const ConfigTable<LlamaConfig>& table();
};

// Biases in the queries', keys' and values' projections.
struct Qwen2Config {
  static LlamaConfig parse(const nlohmann::json& config, const ConfigSource& source);
  static const ConfigTable<LlamaConfig>& table();
};

}  // namespace tessera::models
