// CLIP's config.json: one for texts, one for images, and what joins them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/dtype.h"
#include "models/config/config_key.h"

namespace tessera::models {

template <class Config>
class ConfigTable;

// The options that both encoders have.
struct CLIPEncoderConfig {
  std::int64_t hidden_size = 512;
  std::int64_t intermediate_size = 2048;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 8;
  std::string hidden_act = "quick_gelu";
  double layer_norm_eps = 1e-5;
  double attention_dropout = 0;
  double initializer_range = 0.02;
  double initializer_factor = 1;
};

struct CLIPTextConfig : CLIPEncoderConfig {
  std::int64_t vocab_size = 49408;
  std::int64_t max_position_embeddings = 77;
  // The token whose state stands for its text. 2 has another meaning (clip.h).
  std::int64_t eos_token_id = 49407;

  static const ConfigTable<CLIPTextConfig>& table();
};

struct CLIPVisionConfig : CLIPEncoderConfig {
  CLIPVisionConfig() {
    hidden_size = 768;
    intermediate_size = 3072;
    num_attention_heads = 12;
  }
  std::int64_t image_size = 224;  // of a side
  std::int64_t patch_size = 32;
  std::int64_t num_channels = 3;

  static const ConfigTable<CLIPVisionConfig>& table();
  [[nodiscard]] std::int64_t patches() const {
    return (image_size / patch_size) * (image_size / patch_size);
  }
};

struct CLIPConfig {
  CLIPTextConfig text;
  CLIPVisionConfig vision;
  std::int64_t projection_dim = 512;
  double logit_scale_init_value = 2.6592;
  double initializer_factor = 1;  // of the projections
  std::string original = "{}";    // the JSON text it was read from

  static const ConfigTable<CLIPConfig>& table();
  // Absent keys take transformers' own values. Error(configuration) for a model that is not
  // supported.
  static CLIPConfig parse(const nlohmann::json& config, const ConfigSource& source);
  [[nodiscard]] nlohmann::json to_json(DType weights) const;
};

}  // namespace tessera::models
