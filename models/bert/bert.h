// BERT as an encoder, with Hugging Face's module tree and parameter names. Token types are always
// 0; the pooler, and the heads of pre-training, are ignored when weights are read.
#pragma once

#include <cstdint>
#include <string>

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

class BertModel : public TextEncoder {
 public:
  explicit BertModel(BertConfig config);
  using TextEncoder::forward;
  Tensor forward(const TokenRows& tokens) override;
  [[nodiscard]] TokenRows rows_of(const TokenBatch& tokens) const override;

  [[nodiscard]] nlohmann::json config(DType weights = float32) const override;
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "BertLayer"; }
  [[nodiscard]] std::int64_t vocabulary() const override { return config_.vocab_size; }
  [[nodiscard]] std::int64_t positions() const override { return config_.max_position_embeddings; }
  [[nodiscard]] std::int64_t width() const override { return config_.hidden_size; }

 private:
  BertConfig config_;
  BertEmbeddings embeddings_;
  BertEncoder encoder_;
};

// The names that a parameter may have in the file of a model whose tree begins with `prefix`, or of
// a related model with other heads: with and without the prefix, and with the names that
// TensorFlow's converters gave to norms.
std::vector<std::string> encoder_aliases(const std::string& name, const std::string& prefix);

}  // namespace tessera::models
