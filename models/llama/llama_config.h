// Llama's configuration, as Hugging Face's config.json has it, rotary scaling in both of its
// spellings; and what other models of the same build (Mistral, Qwen2) change of it.
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

// How rotary frequencies are stretched for more positions than a model was first trained on.
struct RopeScaling {
  std::string rope_type = "default";  // that is none, linear, or llama3
  double factor = 1.0;
  // llama3: wavelengths above original / low are stretched by `factor`, those below original / high
  // stay.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 0;
};

struct LlamaConfig;

// What models of Llama's build differ in beside their numbers.
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

  // Tokens that a query sees, itself included: transformers' sliding window. Sequences are not
  // taken beyond it, and up to it it changes nothing.
  std::optional<std::int64_t> sliding_window;

  // Absent keys take the values above, transformers' own. Error(configuration) for what cannot be
  // built.
  static LlamaConfig parse(const nlohmann::json& config, const ConfigSource& source);
  static const ConfigTable<LlamaConfig>& table();
  // Writes the spelling that all versions of transformers read: rope_theta and rope_scaling.
  [[nodiscard]] nlohmann::json to_json(DType weights) const;
  // The longest sequence.
  [[nodiscard]] std::int64_t positions() const;

  static const DecoderFamily& llama_family();
};

// The rows that every model of Llama's build has, with the defaults of `defaults`, and what reads
// and checks them.
// What a configuration without num_key_value_heads means: as many as there are heads, or what
// `defaults` has (and null as many as heads).
enum class KeyHeads : std::uint8_t { as_heads, own_default };
ConfigTable<LlamaConfig> decoder_table(const LlamaConfig& defaults,
                                       KeyHeads absent = KeyHeads::as_heads);
LlamaConfig parse_decoder(const DecoderFamily& family, const nlohmann::json& config,
                          const ConfigSource& source);

}  // namespace tessera::models
