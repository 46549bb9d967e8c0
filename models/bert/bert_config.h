// The config.json of BERT and of the models of its build, which share most keys.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/dtype.h"
#include "models/config/config_key.h"

namespace tessera::models {

template <class Config>
class ConfigTable;

struct BertConfig {
  std::int64_t vocab_size = 30522;
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  std::string hidden_act = "gelu";
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;                  // 0: the model has no token types
  std::int64_t relative_attention_num_buckets = 32;  // MPNet's
  bool attention_output_dropout = true;  // hidden_dropout_prob after the attention's output, too
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  std::string original = "{}";  // the JSON text it was read from

  static const ConfigTable<BertConfig>& table();
  // Absent keys take transformers' own values. Error(configuration) for a model that is not
  // supported.
  static BertConfig parse(const nlohmann::json& config, const ConfigSource& source);
  [[nodiscard]] nlohmann::json to_json(DType weights) const;

  // `gelu` is the exact form, with the error function; the other names mean the tanh approximation.
  [[nodiscard]] bool exact_gelu() const { return hidden_act == "gelu"; }
};

struct MPNetConfig : BertConfig {
  MPNetConfig() {
    vocab_size = 30527;
    type_vocab_size = 0;
  }
  static const ConfigTable<MPNetConfig>& table();
  static MPNetConfig parse(const nlohmann::json& config, const ConfigSource& source);
  [[nodiscard]] nlohmann::json to_json(DType weights) const;
};

// RoBERTa and the models that differ from it in their names only.
struct RobertaFamily {
  const char* model_type;
  const char* model_class;  // of transformers, as layer_class
  const char* layer_class;
  std::int64_t vocab_size;
};
inline constexpr RobertaFamily roberta_family{"roberta", "RobertaModel", "RobertaLayer", 50265};
inline constexpr RobertaFamily xlm_roberta_family{"xlm-roberta", "XLMRobertaModel",
                                                  "XLMRobertaLayer", 30522};
inline constexpr RobertaFamily camembert_family{"camembert", "CamembertModel", "CamembertLayer",
                                                30522};

struct RobertaConfig : BertConfig {
  const RobertaFamily* family = &roberta_family;
  std::int64_t pad_token_id = 1;  // positions begin after it

  static ConfigTable<RobertaConfig> table(const RobertaFamily& family);
  static RobertaConfig parse(const RobertaFamily& family, const nlohmann::json& config,
                             const ConfigSource& source);
  [[nodiscard]] nlohmann::json to_json(DType weights) const;
};

// The same sizes under DistilBERT's own names.
struct DistilBertConfig : BertConfig {
  DistilBertConfig() {
    num_hidden_layers = 6;
    type_vocab_size = 0;
    attention_output_dropout = false;
  }
  static const ConfigTable<DistilBertConfig>& table();
  static DistilBertConfig parse(const nlohmann::json& config, const ConfigSource& source);
  [[nodiscard]] nlohmann::json to_json(DType weights) const;
};

}  // namespace tessera::models
