// ViT's config.json.
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

struct ViTConfig {
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  std::string hidden_act = "gelu";
  double hidden_dropout_prob = 0;
  double attention_probs_dropout_prob = 0;
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  std::int64_t image_size = 224;  // of a side
  std::int64_t patch_size = 16;
  std::int64_t num_channels = 3;
  bool qkv_bias = true;
  std::int64_t pooler_output_size = 768;
  std::string pooler_act = "tanh";
  // The kind of labels: "regression", "single_label_classification",
  // "multi_label_classification", or empty: as their number and dtype say (vit.h).
  std::string problem_type;
  // The names of the classes, config.json's id2label.
  std::vector<std::string> labels = {"LABEL_0", "LABEL_1"};
  std::string original = "{}";  // the JSON text it was read from

  static const ConfigTable<ViTConfig>& table();
  // Absent keys take transformers' own values. Error(configuration) for a model that is not
  // supported.
  static ViTConfig parse(const nlohmann::json& config, const ConfigSource& source);
  [[nodiscard]] nlohmann::json to_json(const std::string& model_class, DType weights) const;

  [[nodiscard]] std::int64_t patches() const {
    return (image_size / patch_size) * (image_size / patch_size);
  }
};

}  // namespace tessera::models
