// Qwen2: Llama's build with biases in the queries', keys' and values' projections.
#pragma once

#include "models/llama/llama_config.h"

namespace tessera::models {

struct Qwen2Config {
  static LlamaConfig parse(const nlohmann::json& config, const ConfigSource& source);
  static const ConfigTable<LlamaConfig>& table();
};

}  // namespace tessera::models
