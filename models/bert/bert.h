// BERT as an encoder, with Hugging Face's module tree and parameter names. Token types are always
// 0; the pooler, and the heads of pre-training, are ignored when weights are read.
#pragma once

#include <cstdint>
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

class BertEmbeddingsImpl : public nn::Module {
 public:
  explicit BertEmbeddingsImpl(const BertConfig& config);
  Tensor forward(const TokenRows& tokens) const;

 private:
  double dropout_;
  nn::Embedding word_, position_, token_type_;
  nn::LayerNorm norm_;
};
TESSERA_MODULE(BertEmbeddings);

class BertLayerImpl : public EncoderLayerImpl {
 public:
  explicit BertLayerImpl(const BertConfig& config);
};
TESSERA_MODULE(BertLayer);

class BertEncoderImpl : public nn::Module {
 public:
  explicit BertEncoderImpl(const BertConfig& config);
  Tensor forward(const Tensor& x, const Sequences& sequences) const;

 private:
  nn::ModuleList<BertLayer> layer_;
};
TESSERA_MODULE(BertEncoder);

// The model of BERT and of MPNet.
template <class Config, class Embeddings, class Encoder>
class BertLikeModel : public TextEncoder {
 public:
  // `title` is for messages.
  BertLikeModel(Config config, const char* title) : config_(std::move(config)), title_(title) {
    embeddings_ = register_module("embeddings", Embeddings(config_));
    encoder_ = register_module("encoder", Encoder(config_));
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
  [[nodiscard]] nlohmann::json config(DType weights = float32) const override;
  [[nodiscard]] TokenRows rows_of(const TokenBatch& tokens) const override;
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "BertLayer"; }
};

// The names in the file of a model whose tree begins with `prefix`, or of a related model with
// other heads. A parameter is there with and without the prefix, and with the names that
// TensorFlow's converters gave to norms. Ignored are `unused`, with and without the prefix, and
// `head` under `head_prefix`.
HuggingFaceNames bert_like_names(const std::string& prefix, const std::vector<std::string>& unused,
                                 const std::string& head_prefix,
                                 const std::vector<std::string>& head);

}  // namespace tessera::models
