// ModernBERT's config.json, in transformers 4's and 5's spellings of windows and rotary bases.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "models/config/config_key.h"

namespace tessera::models {

template <class Config>
class ConfigTable;

struct ModernBertConfig {
  std::int64_t vocab_size = 50368;
  std::int64_t hidden_size = 768;
  std::int64_t intermediate_size = 1152;
  std::int64_t num_hidden_layers = 22;
  std::int64_t num_attention_heads = 12;
  std::string hidden_activation = "gelu";
  std::int64_t max_position_embeddings = 8192;
  double norm_eps = 1e-5;
  bool norm_bias = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  double attention_dropout = 0;  // of the probabilities and of the attention's output
  double embedding_dropout = 0;
  double mlp_dropout = 0;
  // Tokens that a layer with a window sees, half of them on each side.
  std::int64_t local_attention = 128;
  // Each layer of this multiple, the first included, sees all tokens, unless `layers_with_window`
  // says it layer by layer.
  std::int64_t global_attn_every_n_layers = 3;
  std::vector<bool> layers_with_window;
  double global_rope_theta = 160000;
  double local_rope_theta = 10000;
  double initializer_range = 0.02;
  std::string original = "{}";  // the JSON text it was read from

  static const ConfigTable<ModernBertConfig>& table();
  // Absent keys take transformers' own values. Error(configuration) for a model that is not
  // supported.
  static ModernBertConfig parse(const nlohmann::json& config, const ConfigSource& source);
  [[nodiscard]] nlohmann::json to_json(DType weights) const;

  [[nodiscard]] bool exact_gelu() const { return hidden_activation == "gelu"; }
  [[nodiscard]] bool has_window(std::int64_t layer) const {
    if (!layers_with_window.empty()) return layers_with_window[static_cast<std::size_t>(layer)];
    return layer % global_attn_every_n_layers != 0;
  }
};

}  // namespace tessera::models
