// BERT as an encoder, with Hugging Face's module tree and parameter names, and what the models of
// its build share. Token types are always 0; the pooler, and the heads of pre-training, are ignored
// when weights are read.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "models/bert/bert_config.h"
#include "models/bert/encoder_layer.h"
#include "models/text_encoder.h"

namespace tessera::models {

// The sum of a token's tables, with token types unless type_vocab_size is 0, and its norm.
class BertEmbeddingsImpl : public nn::Module {
 public:
  explicit BertEmbeddingsImpl(const BertConfig& config);
  Tensor forward(const TokenRows& tokens) const;

 private:
  double dropout_;
  nn::Embedding word_, position_;
  nn::Embedding token_type_;  // empty: there are none
  nn::LayerNorm norm_;
};
TESSERA_MODULE(BertEmbeddings);

class BertLayerImpl : public EncoderLayerImpl {
 public:
  explicit BertLayerImpl(const BertConfig& config);
};
TESSERA_MODULE(BertLayer);

// Layers in their order.
template <class Layer>
class EncoderStackImpl : public nn::Module {
 public:
  template <class Config>
  explicit EncoderStackImpl(const Config& config) {
    std::vector<Layer> layers;
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers.emplace_back(config);
    layer_ = register_module("layer", nn::ModuleList<Layer>(std::move(layers)));
  }
  Tensor forward(const Tensor& x, const Sequences& sequences) const {
    Tensor states = x;
    for (const Layer& layer : *layer_) states = layer(states, sequences, Tensor{});
    return states;
  }

 private:
  nn::ModuleList<Layer> layer_;
};

class BertEncoderImpl : public EncoderStackImpl<BertLayer> {
 public:
  explicit BertEncoderImpl(const BertConfig& config) : EncoderStackImpl(config) {}
};
TESSERA_MODULE(BertEncoder);

// A model of embeddings and an encoder.
template <class Config, class Embeddings, class Encoder>
class BertLikeModel : public TextEncoder {
 public:
  // `title` is for messages; `encoder` is the encoder's name in the tree.
  BertLikeModel(Config config, const char* title, const std::string& encoder = "encoder")
      : config_(std::move(config)), title_(title) {
    embeddings_ = register_module("embeddings", Embeddings(config_));
    encoder_ = register_module(encoder, Encoder(config_));
  }
  using TextEncoder::forward;
  Tensor forward(const TokenRows& tokens) override {
    TESSERA_REQUIRE(tokens.sequences.longest <= positions(),
                    "{} takes sequences of at most {} tokens, given {}", title_, positions(),
                    tokens.sequences.longest);
    return encoder_(embeddings_(tokens), tokens.sequences);
  }

  [[nodiscard]] std::int64_t vocabulary() const override { return config_.vocab_size; }
  [[nodiscard]] std::int64_t positions() const override { return config_.max_position_embeddings; }
  [[nodiscard]] std::int64_t width() const override { return config_.hidden_size; }
  [[nodiscard]] nlohmann::json config(DType weights = float32) const override {
    return config_.to_json(weights);
  }

 protected:
  Config config_;

 private:
  const char* title_;
  Embeddings embeddings_;
  Encoder encoder_;
};

class BertModel : public BertLikeModel<BertConfig, BertEmbeddings, BertEncoder> {
 public:
  explicit BertModel(BertConfig config);
  [[nodiscard]] TokenRows rows_of(const TokenBatch& tokens) const override;
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "BertLayer"; }
};

EncoderLayerNames bert_layer_names();

// The names in the file of a model whose tree begins with `prefix`, or of a related model with
// other heads. A parameter is there with and without the prefix, and with the names that
// TensorFlow's converters gave to norms. Ignored are `unused`, with and without the prefix, and
// `head` under `head_prefix`.
HuggingFaceNames bert_like_names(const std::string& prefix, const std::vector<std::string>& unused,
                                 const std::string& head_prefix,
                                 const std::vector<std::string>& head);

}  // namespace tessera::models
