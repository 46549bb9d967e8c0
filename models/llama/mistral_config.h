// Mistral: Llama's build with other defaults, and a sliding window in its first version.
#pragma once

#include "models/llama/llama_config.h"

namespace tessera::models {

struct MistralConfig {
  static LlamaConfig parse(const nlohmann::json& config, const ConfigSource& source);
  static const ConfigTable<LlamaConfig>& table();
};

}  // namespace tessera::models
