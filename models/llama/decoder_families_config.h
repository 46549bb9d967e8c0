// The models of Llama's build: a function for each, and its name in models/registry.
#pragma once

#include "models/config/config_table.h"
#include "models/llama/llama_config.h"

namespace tessera::models {

const DecoderFamily& mistral_family();    // a sliding window in its first version
const DecoderFamily& qwen2_family();      // biases in the queries', keys' and values' projections
const DecoderFamily& qwen3_family();      // norms of each head's queries and keys
const DecoderFamily& olmo2_family();      // norms after the layers, and of queries and keys
const DecoderFamily& smollm3_family();    // layers without rotary positions
const DecoderFamily& phi3_family();       // fused projections, heads rotated in part
const DecoderFamily& gemma3_family();     // windows in most layers, norms around their parts
const DecoderFamily& mixtral_family();    // Mistral with experts
const DecoderFamily& qwen3_moe_family();  // Qwen3 with experts, perhaps not in every layer
const DecoderFamily& gpt_oss_family();    // experts in one tensor, attention sinks, windows

// A family as the registry needs it.
template <const DecoderFamily& (*Family)()>
struct DecoderConfig {
  static LlamaConfig parse(const nlohmann::json& config, const ConfigSource& source) {
    return parse_decoder(Family(), config, source);
  }
  static auto table() { return decoder_table(Family()); }
};

}  // namespace tessera::models
