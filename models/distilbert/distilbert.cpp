// DistilBERT's layers.
#include "models/distilbert/distilbert.h"

#include <utility>

namespace tessera::models {
namespace {

EncoderLayerNames distilbert_layer_names() {
  return {.query = "attention.q_lin",
          .key = "attention.k_lin",
          .value = "attention.v_lin",
          .attention_output = "attention.out_lin",
          .attention_norm = "sa_layer_norm",
          .intermediate = "ffn.lin1",
          .output = "ffn.lin2",
          .output_norm = "output_layer_norm"};
}

}  // namespace

DistilBertLayerImpl::DistilBertLayerImpl(const DistilBertConfig& config)
    : EncoderLayerImpl(config, distilbert_layer_names()) {}

DistilBertModel::DistilBertModel(DistilBertConfig config)
    : BertLikeModel(std::move(config), "DistilBERT", "transformer") {}

TokenRows DistilBertModel::rows_of(const TokenBatch& tokens) const {
  return numbered_rows(tokens, 0, positions());
}

HuggingFaceNames DistilBertModel::hugging_face_names() const {
  return bert_like_names("distilbert.", {"embeddings.position_ids"}, "vocab_",
                         {"transform.weight", "transform.bias", "layer_norm.weight",
                          "layer_norm.bias", "projector.weight", "projector.bias"});
}

}  // namespace tessera::models
