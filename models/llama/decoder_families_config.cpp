// The config.json of the models of Llama's build.
#include "models/llama/decoder_families_config.h"

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
            "Tokens that a token sees, itself included.", at_least(1));
  return table;
}

ConfigTable<LlamaConfig> make_qwen2_table() {
  LlamaConfig defaults;
  defaults.vocab_size = 151936;
  defaults.intermediate_size = 22016;
  defaults.num_key_value_heads = 32;
  defaults.max_position_embeddings = 32768;
  return decoder_table(defaults, KeyHeads::own_default);
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
