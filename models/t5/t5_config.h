// T5's config.json: for its encoder alone, and for both stacks.
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

struct T5Config {
  std::int64_t vocab_size = 32128;
  std::int64_t d_model = 512;
  std::int64_t d_kv = 64;  // elements of a head
  std::int64_t d_ff = 2048;
  std::int64_t num_layers = 6;
  std::int64_t num_heads = 8;
  std::int64_t relative_attention_num_buckets = 32;
  std::int64_t relative_attention_max_distance = 128;
  std::int64_t n_positions = 512;
  double dropout_rate = 0.1;
  double layer_norm_epsilon = 1e-6;
  double initializer_factor = 1;
  std::string feed_forward_proj = "relu";
  std::string original = "{}";  // the JSON text it was read from

  static const ConfigTable<T5Config>& table();
  // Absent keys take transformers' own values. Error(configuration) for a model that is not
  // supported.
  static T5Config parse(const nlohmann::json& config, const ConfigSource& source);
  [[nodiscard]] nlohmann::json to_json(DType weights) const;

  [[nodiscard]] bool is_gated() const { return feed_forward_proj == "gated-gelu"; }
  [[nodiscard]] std::int64_t inner() const { return num_heads * d_kv; }
};

// An encoder and a decoder. transformers 4 describes T5 1.1's head, which is a layer of its own, by
// tie_word_embeddings = false; transformers 5 by scale_decoder_outputs = false, beside
// tie_word_embeddings = true whatever the head is.
struct T5GenerationConfig : T5Config {
  std::int64_t num_decoder_layers = 6;
  // The head is the token table, and the decoder's states are divided by the square root of d_model
  // before it; otherwise the head is a layer of its own, without the division.
  bool tied = true;
  std::int64_t pad_token_id = 0;
  std::int64_t decoder_start_token_id = 0;
  std::vector<std::int64_t> eos_token_ids = {1};

  static const ConfigTable<T5GenerationConfig>& table();
  static T5GenerationConfig parse(const nlohmann::json& config, const ConfigSource& source);
  [[nodiscard]] nlohmann::json to_json(DType weights) const;
};

}  // namespace tessera::models
