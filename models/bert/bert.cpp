// BERT's layers.
#include "models/bert/bert.h"

namespace tessera::models {

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

BertEmbeddingsImpl::BertEmbeddingsImpl(const BertConfig& config)
    : dropout_(config.hidden_dropout_prob) {
  const auto table = [&](const char* name, std::int64_t entries) {
    return register_module(name,
                           nn::Embedding(entries, config.hidden_size, config.initializer_range));
  };
  word_ = table("word_embeddings", config.vocab_size);
  position_ = table("position_embeddings", config.max_position_embeddings);
  if (config.type_vocab_size > 0) {
    token_type_ = table("token_type_embeddings", config.type_vocab_size);
  }
  norm_ = register_module("LayerNorm", nn::LayerNorm(config.hidden_size, config.layer_norm_eps));
}

Tensor BertEmbeddingsImpl::forward(const TokenRows& tokens) const {
  Tensor places = position_(tokens.positions);
  if (token_type_) {
    const Tensor type = Tensor::from(std::vector<std::int32_t>{0}, {1}).to(tokens.ids.device());
    const Tensor row = token_type_(type);
    places = places + reshape(row, {row.size(1)});
  }
  const Tensor x = norm_(word_(tokens.ids), places).second;
  return sequence_dropout(x, is_training() ? dropout_ : 0, tokens.sequences);
}

BertLayerImpl::BertLayerImpl(const BertConfig& config)
    : EncoderLayerImpl(config, bert_layer_names()) {}

BertModel::BertModel(BertConfig config) : BertLikeModel(std::move(config), "BERT") {}

TokenRows BertModel::rows_of(const TokenBatch& tokens) const {
  return numbered_rows(tokens, 0, positions());
}

HuggingFaceNames bert_like_names(const std::string& prefix, const std::vector<std::string>& unused,
                                 const std::string& head_prefix,
                                 const std::vector<std::string>& head) {
  HuggingFaceNames names;
  names.aliases = [prefix](const std::string& name) {
    std::vector<std::string> aliases{name};
    for (const auto& [now, before] :
         {std::pair{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}}) {
      const std::string_view ending = now;
      if (!name.ends_with(ending)) continue;
      aliases.push_back(name.substr(0, name.size() - ending.size()) + before);
    }
    for (std::size_t i = 0, n = aliases.size(); i < n; ++i) aliases.push_back(prefix + aliases[i]);
    return aliases;
  };
  names.ignored = unused;
  for (const std::string& name : unused) names.ignored.push_back(prefix + name);
  for (const std::string& name : head) names.ignored.push_back(head_prefix + name);
  return names;
}

HuggingFaceNames BertModel::hugging_face_names() const {
  return bert_like_names(
      "bert.",
      {"pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids",
       "embeddings.token_type_ids"},
      "cls.",
      {"predictions.bias", "predictions.decoder.weight", "predictions.decoder.bias",
       "predictions.transform.dense.weight", "predictions.transform.dense.bias",
       "predictions.transform.LayerNorm.weight", "predictions.transform.LayerNorm.bias",
       "predictions.transform.LayerNorm.gamma", "predictions.transform.LayerNorm.beta",
       "seq_relationship.weight", "seq_relationship.bias"});
}

}  // namespace tessera::models
