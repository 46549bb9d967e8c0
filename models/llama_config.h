// Llama's configuration, as Hugging Face's config.json has it, rotary scaling in both of its
// spellings.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/base/dtype.h"

namespace tessera::models {

// How rotary frequencies are stretched for more positions than a model was first trained on.
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1.0;
  // llama3: wavelengths above original / low are stretched by `factor`, those below original / high
  // stay.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 0;
};

struct LlamaConfig {
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
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  std::string original = "{}";  // the JSON text it was read from

  // Absent keys take the values above, transformers' own. Error(configuration) for what cannot be
  // built.
  static LlamaConfig parse(const nlohmann::json& config, const std::string& source);
  // Writes the spelling that all versions of transformers read: rope_theta and rope_scaling.
  [[nodiscard]] nlohmann::json to_json(DType weights) const;
};

}  // namespace tessera::models
