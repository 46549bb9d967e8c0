// RoBERTa's layers.
#include "models/roberta/roberta.h"

#include <utility>

namespace tessera::models {

RobertaLayerImpl::RobertaLayerImpl(const RobertaConfig& config)
    : EncoderLayerImpl(config, bert_layer_names()), class_name_(config.family->layer_class) {}

RobertaModel::RobertaModel(RobertaConfig config) : BertLikeModel(std::move(config), "RoBERTa") {}

// A padding token has the position of padding and is not counted, wherever it is.
TokenRows RobertaModel::rows_of(const TokenBatch& tokens) const {
  return padded_rows(tokens, static_cast<std::int32_t>(config_.pad_token_id), positions());
}

// All families' trees begin with the same prefix.
HuggingFaceNames RobertaModel::hugging_face_names() const {
  return bert_like_names("roberta.",
                         {"pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids",
                          "embeddings.token_type_ids"},
                         "lm_head.",
                         {"bias", "dense.weight", "dense.bias", "layer_norm.weight",
                          "layer_norm.bias", "decoder.weight", "decoder.bias"});
}

}  // namespace tessera::models
