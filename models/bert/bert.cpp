// BERT's layers.
#include "models/bert/bert.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tessera::models {
namespace {

EncoderLayerNames bert_layer_names() {
  return {.query = "attention.self.query",
          .key = "attention.self.key",
          .value = "attention.self.value",
          .attention_output = "attention.output.dense",
          .attention_norm = "attention.output.LayerNorm",
          .intermediate = "intermediate.dense",
          .output = "output.dense",
          .output_norm = "output.LayerNorm"};
}

}  // namespace

BertEmbeddingsImpl::BertEmbeddingsImpl(const BertConfig& config)
    : dropout_(config.hidden_dropout_prob) {
  const auto table = [&](const char* name, std::int64_t entries) {
    return register_module(name,
                           nn::Embedding(entries, config.hidden_size, config.initializer_range));
  };
  word_ = table("word_embeddings", config.vocab_size);
  position_ = table("position_embeddings", config.max_position_embeddings);
  token_type_ = table("token_type_embeddings", config.type_vocab_size);
  norm_ = register_module("LayerNorm", nn::LayerNorm(config.hidden_size, config.layer_norm_eps));
}

Tensor BertEmbeddingsImpl::forward(const TokenRows& tokens) const {
  const Tensor type = Tensor::from(std::vector<std::int32_t>{0}, {1}).to(tokens.ids.device());
  const Tensor row = token_type_(type);
  const Tensor places = position_(tokens.positions) + reshape(row, {row.size(1)});
  const Tensor x = norm_(word_(tokens.ids), places).second;
  return sequence_dropout(x, is_training() ? dropout_ : 0, tokens.sequences);
}

BertLayerImpl::BertLayerImpl(const BertConfig& config)
    : EncoderLayerImpl(config, bert_layer_names()) {}

BertEncoderImpl::BertEncoderImpl(const BertConfig& config) {
  std::vector<BertLayer> layers;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers.emplace_back(config);
  layer_ = register_module("layer", nn::ModuleList<BertLayer>(std::move(layers)));
}

Tensor BertEncoderImpl::forward(const Tensor& x, const Sequences& sequences) const {
  Tensor states = x;
  for (const BertLayer& layer : *layer_) states = layer(states, sequences, Tensor{});
  return states;
}

BertModel::BertModel(BertConfig config) : config_(std::move(config)) {
  embeddings_ = register_module("embeddings", BertEmbeddings(config_));
  encoder_ = register_module("encoder", BertEncoder(config_));
}

Tensor BertModel::forward(const TokenRows& tokens) {
  TESSERA_REQUIRE(tokens.sequences.longest <= positions(),
                  "BERT takes sequences of at most {} tokens, given {}", positions(),
                  tokens.sequences.longest);
  return encoder_(embeddings_(tokens), tokens.sequences);
}

TokenRows BertModel::rows_of(const TokenBatch& tokens) const {
  return numbered_rows(tokens, 0, positions());
}

nlohmann::json BertModel::config(DType weights) const {
  return config_.to_json(weights);
}

std::vector<std::string> encoder_aliases(const std::string& name, const std::string& prefix) {
  std::vector<std::string> aliases{name};
  for (const auto& [now, before] :
       {std::pair{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}}) {
    const std::string_view ending = now;
    if (!name.ends_with(ending)) continue;
    aliases.push_back(name.substr(0, name.size() - ending.size()) + before);
  }
  for (std::size_t i = 0, n = aliases.size(); i < n; ++i) aliases.push_back(prefix + aliases[i]);
  return aliases;
}

HuggingFaceNames BertModel::hugging_face_names() const {
  HuggingFaceNames names;
  names.aliases = [](const std::string& name) { return encoder_aliases(name, "bert."); };
  for (const char* prefix : {"", "bert."}) {
    for (const char* name : {"pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids",
                             "embeddings.token_type_ids"}) {
      names.ignored.push_back(fmt::format("{}{}", prefix, name));
    }
  }
  for (const char* name :
       {"predictions.bias", "predictions.decoder.weight", "predictions.decoder.bias",
        "predictions.transform.dense.weight", "predictions.transform.dense.bias",
        "predictions.transform.LayerNorm.weight", "predictions.transform.LayerNorm.bias",
        "predictions.transform.LayerNorm.gamma", "predictions.transform.LayerNorm.beta",
        "seq_relationship.weight", "seq_relationship.bias"}) {
    names.ignored.push_back(fmt::format("cls.{}", name));
  }
  return names;
}

}  // namespace tessera::models
