// ModernBERT's layers over rows of packed sequences.
#include "models/modernbert/modernbert.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/tensor_ops.h"
#include "models/bert/bert.h"
#include "models/bert/encoder_layer.h"

namespace tessera::models {
namespace {

nn::LayerNorm norm_of(const ModernBertConfig& config) {
  return nn::LayerNorm(config.hidden_size, config.norm_eps, config.norm_bias);
}

// Projections back to the width start smaller in deeper models.
double output_deviation(const ModernBertConfig& config) {
  return config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
}

// Rotates the rows of heads by their own positions.
Tensor turned(const Tensor& rows, std::int64_t heads, const RopeTables& rope) {
  return reshape(rotary(unsqueeze(rows, 0), heads, rope.cosine, rope.sine), rows.shape());
}

}  // namespace

ModernBertEmbeddingsImpl::ModernBertEmbeddingsImpl(const ModernBertConfig& config)
    : dropout_(config.embedding_dropout) {
  tokens_ = register_module("tok_embeddings", nn::Embedding(config.vocab_size, config.hidden_size,
                                                            config.initializer_range));
  norm_ = register_module("norm", norm_of(config));
}

Tensor ModernBertEmbeddingsImpl::forward(const TokenRows& tokens) const {
  return sequence_dropout(norm_(tokens_(tokens.ids)), is_training() ? dropout_ : 0,
                          tokens.sequences);
}

ModernBertAttentionImpl::ModernBertAttentionImpl(const ModernBertConfig& config, bool has_window)
    : dropout_(config.attention_dropout) {
  options_.heads = config.num_attention_heads;
  options_.dropout = config.attention_dropout;
  if (has_window) options_.window = config.local_attention / 2;
  const std::int64_t hidden = config.hidden_size;
  const auto linear_layer = [&](std::int64_t outputs, double deviation) {
    return nn::Linear(hidden, outputs,
                      nn::LinearOptions{.bias = config.attention_bias, .deviation = deviation});
  };
  qkv_ = register_module("Wqkv", linear_layer(3 * hidden, config.initializer_range));
  out_ = register_module("Wo", linear_layer(hidden, output_deviation(config)));
}

Tensor ModernBertAttentionImpl::forward(const Tensor& x, const Sequences& sequences,
                                        const RopeTables& rope) const {
  SequenceAttentionOptions options = options_;
  if (!is_training()) options.dropout = 0;
  const std::vector<Tensor> parts = chunk(project_rows(qkv_, x, sequences), 3, -1);
  const Tensor context =
      sequence_attention(turned(parts[0], options.heads, rope),
                         turned(parts[1], options.heads, rope), parts[2], sequences, options);
  return sequence_dropout(project_rows(out_, context, sequences), is_training() ? dropout_ : 0,
                          sequences);
}

ModernBertMlpImpl::ModernBertMlpImpl(const ModernBertConfig& config)
    : exact_gelu_(config.exact_gelu()), dropout_(config.mlp_dropout) {
  const std::int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  in_ = register_module("Wi", nn::Linear(hidden, 2 * inner,
                                         nn::LinearOptions{.bias = config.mlp_bias,
                                                           .deviation = config.initializer_range}));
  out_ = register_module(
      "Wo", nn::Linear(
                inner, hidden,
                nn::LinearOptions{.bias = config.mlp_bias, .deviation = output_deviation(config)}));
}

Tensor ModernBertMlpImpl::forward(const Tensor& x, const Sequences& sequences) const {
  const std::vector<Tensor> parts = chunk(project_rows(in_, x, sequences), 2, -1);
  const Tensor gated = gelu(parts[0], exact_gelu_) * parts[1];
  return project_rows(out_, sequence_dropout(gated, is_training() ? dropout_ : 0, sequences),
                      sequences);
}

ModernBertLayerImpl::ModernBertLayerImpl(const ModernBertConfig& config, std::int64_t layer)
    : has_window_(config.has_window(layer)) {
  if (layer > 0) attention_norm_ = register_module("attn_norm", norm_of(config));
  attention_ = register_module("attn", ModernBertAttention(config, has_window_));
  mlp_norm_ = register_module("mlp_norm", norm_of(config));
  mlp_ = register_module("mlp", ModernBertMlp(config));
}

Tensor ModernBertLayerImpl::forward(const Tensor& x, const Sequences& sequences,
                                    const RopeTables& rope) const {
  const Tensor attended = attention_(attention_norm_ ? attention_norm_(x) : x, sequences, rope);
  const auto [sum, normed] = mlp_norm_(attended, x);
  return sum + mlp_(normed, sequences);
}

ModernBertModel::ModernBertModel(ModernBertConfig config)
    : config_(std::move(config)),
      rope_(config_.hidden_size / config_.num_attention_heads, config_.max_position_embeddings,
            config_.global_rope_theta, {}),
      window_rope_(config_.hidden_size / config_.num_attention_heads,
                   config_.max_position_embeddings, config_.local_rope_theta, {}) {
  embeddings_ = register_module("embeddings", ModernBertEmbeddings(config_));
  std::vector<ModernBertLayer> layers;
  for (std::int64_t i = 0; i < config_.num_hidden_layers; ++i) layers.emplace_back(config_, i);
  layers_ = register_module("layers", nn::ModuleList<ModernBertLayer>(std::move(layers)));
  final_norm_ = register_module("final_norm", norm_of(config_));
}

Tensor ModernBertModel::forward(const TokenRows& tokens) {
  TESSERA_REQUIRE(tokens.sequences.longest <= positions(),
                  "ModernBERT takes sequences of at most {} tokens, given {}", positions(),
                  tokens.sequences.longest);
  Tensor x = embeddings_(tokens);
  const RopeTables rope = rope_.for_positions(tokens.positions, tokens.sequences.longest);
  const RopeTables window_rope =
      window_rope_.for_positions(tokens.positions, tokens.sequences.longest);
  for (const ModernBertLayer& layer : *layers_) {
    x = layer(x, tokens.sequences, layer->has_window() ? window_rope : rope);
  }
  return final_norm_(x);
}

TokenRows ModernBertModel::rows_of(const TokenBatch& tokens) const {
  return numbered_rows(tokens, 0, positions());
}

HuggingFaceNames ModernBertModel::hugging_face_names() const {
  return bert_like_names(
      "model.", {}, "",
      {"head.dense.weight", "head.dense.bias", "head.norm.weight", "head.norm.bias",
       "decoder.weight", "decoder.bias", "classifier.weight", "classifier.bias"});
}

}  // namespace tessera::models
