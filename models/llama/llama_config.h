// Llama's configuration, as in Hugging Face's config.json, with both spellings of rotary scaling,
// and the differences of other models of the same build (Mistral, Qwen2).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "models/config/config_key.h"

namespace tessera::models {

template <class Config>
class ConfigTable;

// Stretches rotary frequencies for more positions than a model was first trained on.
struct RopeScaling {
  std::string rope_type = "default";  // no scaling; or linear, or llama3
  double factor = 1.0;
  // llama3: wavelengths above original / low are stretched by `factor`, those below original / high
  // are not.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 0;
};

struct LlamaConfig;

// The differences between models of Llama's build, besides their numbers.
struct DecoderFamily {
  std::string model_type;
  std::string model_class;
  std::string layer_class;
  const ConfigTable<LlamaConfig>& (*table)();
};

struct LlamaConfig {
  const DecoderFamily* family = &llama_family();
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 32;
  std::int64_t head_dim = 128;
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double attention_dropout = 0.0;
  double initializer_range = 0.02;
  std::string hidden_act = "silu";
  bool attention_bias = false;  // of the queries', keys' and values' projections
  bool output_bias = false;     // of the attention's output
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  std::string original = "{}";  // the JSON text it was read from

  // Tokens that a query sees, including itself: transformers' sliding window.
  std::optional<std::int64_t> sliding_window;

  // Absent keys take the values above, transformers' own. Error(configuration) for a model that is
  // not supported.
  static LlamaConfig parse(const nlohmann::json& config, const ConfigSource& source);
  static const ConfigTable<LlamaConfig>& table();
  // Writes the spelling that all versions of transformers read: rope_theta and rope_scaling.
  [[nodiscard]] nlohmann::json to_json(DType weights) const;

  static const DecoderFamily& llama_family();
};

// Number of key heads if num_key_value_heads is absent: the number of heads, or the value of
// `defaults` (null still means the number of heads).
enum class KeyHeads : std::uint8_t { as_heads, own_default };
// The rows of every model of Llama's build, with the values of `defaults`; parse_decoder() reads
// and checks them.
ConfigTable<LlamaConfig> decoder_table(const LlamaConfig& defaults,
                                       KeyHeads absent = KeyHeads::as_heads);
LlamaConfig parse_decoder(const DecoderFamily& family, const nlohmann::json& config,
                          const ConfigSource& source);

}  // namespace tessera::models
