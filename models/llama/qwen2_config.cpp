// Qwen2's config.json.
#include "models/llama/qwen2_config.h"

#include <nlohmann/json.hpp>

#include "models/config/config_table.h"

namespace tessera::models {
namespace {

ConfigTable<LlamaConfig> make_qwen2_table() {
  LlamaConfig defaults;
  defaults.vocab_size = 151936;
  defaults.intermediate_size = 22016;
  defaults.num_key_value_heads = 32;
  defaults.max_position_embeddings = 32768;
  return decoder_table(defaults, KeyHeads::own_default);
}

}  // namespace

const ConfigTable<LlamaConfig>& Qwen2Config::table() {
  static const ConfigTable<LlamaConfig> table = make_qwen2_table();
  return table;
}

LlamaConfig Qwen2Config::parse(const nlohmann::json& config, const ConfigSource& source) {
  static const DecoderFamily family{"qwen2", "Qwen2ForCausalLM", "Qwen2DecoderLayer", table};
  LlamaConfig c = parse_decoder(family, config, source);
  c.attention_bias = true;
  ConfigReader(config, source).only("use_sliding_window", false);
  return c;
}

}  // namespace tessera::models
