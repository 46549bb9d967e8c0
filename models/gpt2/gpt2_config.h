// GPT-2's configuration, as in Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/dtype.h"
#include "models/config/config_key.h"

namespace tessera::models {

template <class Config>
class ConfigTable;

struct Gpt2Config {
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;
  std::int64_t n_embd = 768;
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_inner = 3072;
  std::string activation_function = "gelu_new";
  double layer_norm_epsilon = 1e-5;
  double resid_pdrop = 0.1;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double initializer_range = 0.02;
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
  bool reorder_and_upcast_attn = false;  // fp32 scores, which the kernels always compute
  bool tie_word_embeddings = true;
  std::string original = "{}";  // the JSON text it was read from

  // Absent keys take the values above, transformers' own. Error(configuration) for a model that is
  // not supported.
  static Gpt2Config parse(const nlohmann::json& config, const ConfigSource& source);
  static const ConfigTable<Gpt2Config>& table();
  [[nodiscard]] nlohmann::json to_json(DType weights) const;

  // `gelu` is the exact form, with the error function; the other names mean the tanh approximation.
  [[nodiscard]] bool exact_gelu() const { return activation_function == "gelu"; }
  // The factor of the attention scores in layer `layer`.
  [[nodiscard]] double attention_scale(std::int64_t layer) const;
};

}  // namespace tessera::models
