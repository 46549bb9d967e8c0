// RoBERTa, XLM-RoBERTa and CamemBERT as encoders, with Hugging Face's module tree and parameter
// names: BERT with positions that begin after padding's. The pooler and the head of pre-training
// are ignored when weights are read.
#pragma once

#include <string>

#include "models/bert/bert.h"

namespace tessera::models {

class RobertaEmbeddingsImpl : public BertEmbeddingsImpl {
 public:
  explicit RobertaEmbeddingsImpl(const RobertaConfig& config) : BertEmbeddingsImpl(config) {}
};
TESSERA_MODULE(RobertaEmbeddings);

class RobertaLayerImpl : public EncoderLayerImpl {
 public:
  explicit RobertaLayerImpl(const RobertaConfig& config);
  // The class's name in transformers, by family.
  [[nodiscard]] std::string class_name() const override { return class_name_; }

 private:
  std::string class_name_;
};
TESSERA_MODULE(RobertaLayer);

class RobertaEncoderImpl : public EncoderStackImpl<RobertaLayer> {
 public:
  explicit RobertaEncoderImpl(const RobertaConfig& config) : EncoderStackImpl(config) {}
};
TESSERA_MODULE(RobertaEncoder);

class RobertaModel : public BertLikeModel<RobertaConfig, RobertaEmbeddings, RobertaEncoder> {
 public:
  explicit RobertaModel(RobertaConfig config);
  [[nodiscard]] TokenRows rows_of(const TokenBatch& tokens) const override;
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return config_.family->layer_class; }
  [[nodiscard]] std::int64_t positions() const override {
    return BertLikeModel::positions() - config_.pad_token_id - 1;
  }
};

}  // namespace tessera::models
