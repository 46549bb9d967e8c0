// MPNet's layers.
#include "models/mpnet/mpnet.h"

#include <algorithm>
#include <cmath>

namespace tessera::models {
namespace {

constexpr std::int32_t padding_token = 1;

EncoderLayerNames mpnet_layer_names() {
  return {.query = "attention.attn.q",
          .key = "attention.attn.k",
          .value = "attention.attn.v",
          .attention_output = "attention.attn.o",
          .attention_norm = "attention.LayerNorm",
          .intermediate = "intermediate.dense",
          .output = "output.dense",
          .output_norm = "output.LayerNorm"};
}

}  // namespace

std::int32_t distance_bucket(std::int64_t distance, const DistanceTable& table) {
  const std::int32_t side = table.side, exact = side / 2;
  const float furthest = table.furthest;
  const std::int32_t first = distance > 0 ? side : 0;
  const std::int64_t away = std::abs(distance);
  if (away < exact) return first + static_cast<std::int32_t>(away);
  // In fp32, as in transformers.
  const float logarithmic = std::log(static_cast<float>(away) / static_cast<float>(exact)) /
                            static_cast<float>(std::log(furthest / static_cast<float>(exact))) *
                            static_cast<float>(side - exact);
  return first + std::min(exact + static_cast<std::int32_t>(logarithmic), side - 1);
}

MPNetLayerImpl::MPNetLayerImpl(const MPNetConfig& config)
    : EncoderLayerImpl(config, mpnet_layer_names()) {}

MPNetEncoderImpl::MPNetEncoderImpl(const MPNetConfig& config) {
  std::vector<MPNetLayer> layers;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers.emplace_back(config);
  layer_ = register_module("layer", nn::ModuleList<MPNetLayer>(std::move(layers)));
  relative_attention_bias_ =
      register_module("relative_attention_bias",
                      nn::Embedding(config.relative_attention_num_buckets,
                                    config.num_attention_heads, config.initializer_range));
}

Tensor MPNetEncoderImpl::forward(const Tensor& x, const Sequences& sequences) const {
  std::vector<std::int32_t> buckets;
  for (std::int64_t d = 1 - sequences.longest; d < sequences.longest; ++d) {
    buckets.push_back(distance_bucket(d));
  }
  const auto distances = static_cast<std::int64_t>(buckets.size());
  const Tensor bias = relative_attention_bias_(Tensor::from(buckets, {distances}).to(x.device()));
  const Tensor wide = bias.dtype() == float64 ? bias : cast(bias, float32);
  Tensor states = x;
  for (const MPNetLayer& layer : *layer_) states = layer(states, sequences, wide);
  return states;
}

MPNetModel::MPNetModel(MPNetConfig config) : BertLikeModel(std::move(config), "MPNet") {}

// A padding token has the position of padding and is not counted, wherever it is.
TokenRows MPNetModel::rows_of(const TokenBatch& tokens) const {
  return padded_rows(tokens, padding_token, positions());
}

HuggingFaceNames MPNetModel::hugging_face_names() const {
  return bert_like_names(
      "mpnet.", {"pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"}, "lm_head.",
      {"bias", "dense.weight", "dense.bias", "layer_norm.weight", "layer_norm.bias",
       "decoder.weight", "decoder.bias"});
}

}  // namespace tessera::models
