// MPNet as an encoder, with Hugging Face's module tree and parameter names. It is BERT without
// token types, with positions that begin after padding's, and with an attention bias by distance,
// one table for all layers. The pooler and the pre-training head are ignored when weights are read.
#pragma once

#include <cstdint>
#include <string>

#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "models/bert/bert.h"

namespace tessera::models {

class MPNetEmbeddingsImpl : public BertEmbeddingsImpl {
 public:
  explicit MPNetEmbeddingsImpl(const MPNetConfig& config) : BertEmbeddingsImpl(config) {}
};
TESSERA_MODULE(MPNetEmbeddings);

class MPNetLayerImpl : public EncoderLayerImpl {
 public:
  explicit MPNetLayerImpl(const MPNetConfig& config);
};
TESSERA_MODULE(MPNetLayer);

class MPNetEncoderImpl : public nn::Module {
 public:
  explicit MPNetEncoderImpl(const MPNetConfig& config);
  Tensor forward(const Tensor& x, const Sequences& sequences) const;

 private:
  nn::ModuleList<MPNetLayer> layer_;
  nn::Embedding relative_attention_bias_;
};
TESSERA_MODULE(MPNetEncoder);

class MPNetModel : public BertLikeModel<MPNetConfig, MPNetEmbeddings, MPNetEncoder> {
 public:
  explicit MPNetModel(MPNetConfig config);
  [[nodiscard]] TokenRows rows_of(const TokenBatch& tokens) const override;
  [[nodiscard]] HuggingFaceNames hugging_face_names() const override;
  [[nodiscard]] std::string layer_class() const override { return "MPNetLayer"; }
  [[nodiscard]] std::int64_t positions() const override { return BertLikeModel::positions() - 2; }
};

// A table of distances: `side` rows for the keys before a query and as many for those after it;
// keys from `furthest` on share one.
struct DistanceTable {
  std::int32_t side = 16;
  float furthest = 128;
};
// The row for a key `distance` places after the query: exact for near keys, then logarithmic. The
// defaults are MPNet's table; T5's are alike.
std::int32_t distance_bucket(std::int64_t distance, const DistanceTable& table = {});

}  // namespace tessera::models
