// DistilBERT as an encoder, with Hugging Face's module tree and parameter names: BERT without token
// types and pooler, with other names, and without dropout after the attention's output. The head of
// pre-training is ignored when weights are read.
#pragma once

#include <string>

#include "models/bert/bert.h"

namespace tessera::models {

class DistilBertEmbeddingsImpl : public BertEmbeddingsImpl {
 public:
  explicit DistilBertEmbeddingsImpl(const DistilBertConfig& config) : BertEmbeddingsImpl(config) {}
};
TESSERA_MODULE(DistilBertEmbeddings);

class DistilBertLayerImpl : public EncoderLayerImpl {
 public:
  explicit DistilBertLayerImpl(const DistilBertConfig& config);
  // The class's name in transformers.
  [[nodiscard]] std::string class_name() const override { return "TransformerBlock"; }
};
TESSERA_MODULE(DistilBertLayer);

class DistilBertEncoderImpl : public EncoderStackImpl<DistilBertLayer> {
 public:
  explicit DistilBertEncoderImpl(const DistilBertConfig& config) : EncoderStackImpl(config) {}
};
TESSERA_MODULE(DistilBertEncoder);

class DistilBertModel
    : public BertLikeModel<DistilBertConfig, DistilBertEmbeddings, DistilBertEncoder> {
 public:
  explicit DistilBertModel(DistilBertConfig config);
  [[nodiscard]] TokenRows rows_of(const TokenBatch& tokens) const override;
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "TransformerBlock"; }
};

}  // namespace tessera::models
