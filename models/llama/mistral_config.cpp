// Mistral's config.json.
#include "models/llama/mistral_config.h"

#include <nlohmann/json.hpp>

#include "models/config/config_table.h"

namespace tessera::models {
namespace {

ConfigTable<LlamaConfig> make_mistral_table() {
  LlamaConfig defaults;
  defaults.intermediate_size = 14336;
  defaults.num_key_value_heads = 8;
  defaults.max_position_embeddings = 131072;
  defaults.sliding_window = 4096;
  ConfigTable<LlamaConfig> table = decoder_table(defaults, KeyHeads::own_default);
  table.add("sliding_window", &LlamaConfig::sliding_window,
            "Tokens that a token sees. Longer sequences are refused, so it has no effect.",
            at_least(1));
  return table;
}

}  // namespace

const ConfigTable<LlamaConfig>& MistralConfig::table() {
  static const ConfigTable<LlamaConfig> table = make_mistral_table();
  return table;
}

LlamaConfig MistralConfig::parse(const nlohmann::json& config, const ConfigSource& source) {
  static const DecoderFamily family{"mistral", "MistralForCausalLM", "MistralDecoderLayer", table};
  return parse_decoder(family, config, source);
}

}  // namespace tessera::models
