// T5's blocks over rows of packed sequences.
#include "models/t5/t5.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/tensor_ops.h"
#include "models/bert/encoder_layer.h"
#include "models/mpnet/mpnet.h"

namespace tessera::models {
namespace {

double root(std::int64_t size) {
  return std::sqrt(static_cast<double>(size));
}

}  // namespace

nn::RmsNorm t5_norm(const T5Config& config) {
  return nn::RmsNorm(config.d_model, config.layer_norm_epsilon);
}

nn::Linear t5_projection(const T5Config& config, std::int64_t in, std::int64_t out,
                         double inverse) {
  return nn::Linear(
      in, out, nn::LinearOptions{.bias = false, .deviation = config.initializer_factor / inverse});
}

T5AttentionImpl::T5AttentionImpl(const T5Config& config, bool has_table) {
  options_.heads = config.num_heads;
  options_.dropout = config.dropout_rate;
  options_.scale = 1;
  const std::int64_t width = config.d_model, inner = config.inner();
  q_ = register_module("q", t5_projection(config, width, inner, root(width * config.d_kv)));
  k_ = register_module("k", t5_projection(config, width, inner, root(width)));
  v_ = register_module("v", t5_projection(config, width, inner, root(width)));
  o_ = register_module("o", t5_projection(config, inner, width, root(inner)));
  if (!has_table) return;
  distances_ =
      register_module("relative_attention_bias",
                      nn::Embedding(config.relative_attention_num_buckets, config.num_heads,
                                    config.initializer_factor / root(width)));
}

Tensor T5AttentionImpl::forward(const Tensor& x, const Sequences& sequences,
                                const Tensor& bias) const {
  SequenceAttentionOptions options = options_;
  options.relative_bias = bias;
  if (!is_training()) options.dropout = 0;
  const Tensor context =
      sequence_attention(project_rows(q_, x, sequences), project_rows(k_, x, sequences),
                         project_rows(v_, x, sequences), sequences, options);
  return project_rows(o_, context, sequences);
}

Tensor T5AttentionImpl::decode(const Tensor& x, const Tensor& bias, Past& past) const {
  const auto heads_of = [&](const Tensor& rows) {
    return reshape(rows, {rows.size(0), options_.heads, 1, rows.size(1) / options_.heads});
  };
  const auto added = [](const Tensor& before, const Tensor& row) {
    return before.defined() ? concatenate({before, row}, 2) : row;
  };
  past.keys = added(past.keys, heads_of(k_(x)));
  past.values = added(past.values, heads_of(v_(x)));
  const Tensor scores = matmul(heads_of(q_(x)), past.keys, {.b = true});
  const Tensor wide = scores.dtype() == float64 ? scores : cast(scores, float32);
  const Tensor shares = cast(softmax(wide + bias), past.values.dtype());
  const Tensor context = matmul(shares, past.values);
  return o_(reshape(context, {x.size(0), -1}));
}

T5FeedForwardImpl::T5FeedForwardImpl(const T5Config& config)
    : gated_(config.is_gated()), dropout_(config.dropout_rate) {
  const std::int64_t width = config.d_model, inner = config.d_ff;
  in_ = register_module(gated_ ? "wi_0" : "wi", t5_projection(config, width, inner, root(width)));
  if (gated_) linear_ = register_module("wi_1", t5_projection(config, width, inner, root(width)));
  out_ = register_module("wo", t5_projection(config, inner, width, root(inner)));
}

Tensor T5FeedForwardImpl::forward(const Tensor& x, const Sequences& sequences) const {
  const Tensor in = project_rows(in_, x, sequences);
  constexpr bool exact = false;
  const Tensor activated =
      gated_ ? gelu(in, exact) * project_rows(linear_, x, sequences) : relu(in);
  return project_rows(out_, sequence_dropout(activated, is_training() ? dropout_ : 0, sequences),
                      sequences);
}

T5BlockImpl::T5BlockImpl(const T5Config& config, bool is_first) : dropout_(config.dropout_rate) {
  const auto names = [] { return Names(std::make_shared<NamesImpl>()); };
  const Names layer = register_module("layer", names());
  const Names first = layer->add("0", names());
  attention_ = first->add("SelfAttention", T5Attention(config, is_first));
  attention_norm_ = first->add("layer_norm", t5_norm(config));
  const Names second = layer->add("1", names());
  feed_forward_ = second->add("DenseReluDense", T5FeedForward(config));
  feed_forward_norm_ = second->add("layer_norm", t5_norm(config));
}

Tensor T5BlockImpl::forward(const Tensor& x, const Sequences& sequences, const Tensor& bias) const {
  const double dropout = is_training() ? dropout_ : 0;
  const Tensor attended =
      sequence_dropout(attention_(attention_norm_(x), sequences, bias), dropout, sequences);
  const auto [sum, normed] = feed_forward_norm_(attended, x);
  return sum + sequence_dropout(feed_forward_(normed, sequences), dropout, sequences);
}

T5StackImpl::T5StackImpl(const T5Config& config)
    : buckets_(config.relative_attention_num_buckets),
      furthest_(config.relative_attention_max_distance),
      dropout_(config.dropout_rate) {
  std::vector<T5Block> blocks;
  for (std::int64_t i = 0; i < config.num_layers; ++i) blocks.emplace_back(config, i == 0);
  block_ = register_module("block", nn::ModuleList<T5Block>(std::move(blocks)));
  norm_ = register_module("final_layer_norm", t5_norm(config));
  reads_parameter((*block_)[0]->distance_table());
}

Tensor T5StackImpl::distance_bias(std::int64_t longest, Device device) const {
  std::vector<std::int32_t> rows;
  for (std::int64_t d = 1 - longest; d < longest; ++d) {
    rows.push_back(distance_bucket(d, {.side = static_cast<std::int32_t>(buckets_ / 2),
                                       .furthest = static_cast<float>(furthest_)}));
  }
  const auto count = static_cast<std::int64_t>(rows.size());
  const Tensor bias =
      embedding(Tensor::from(rows, {count}).to(device), (*block_)[0]->distance_table());
  return bias.dtype() == float64 ? bias : cast(bias, float32);
}

Tensor T5StackImpl::forward(const Tensor& x, const Sequences& sequences) const {
  const double dropout = is_training() ? dropout_ : 0;
  const Tensor bias = distance_bias(sequences.longest, x.device());
  Tensor states = sequence_dropout(x, dropout, sequences);
  for (const T5Block& block : *block_) states = block(states, sequences, bias);
  return sequence_dropout(norm_(states), dropout, sequences);
}

T5Encoder::T5Encoder(T5Config config) : config_(std::move(config)) {
  shared_ = register_module(
      "shared", nn::Embedding(config_.vocab_size, config_.d_model, config_.initializer_factor));
  encoder_ = register_module("encoder", T5Stack(config_));
}

Tensor T5Encoder::forward(const TokenRows& tokens) {
  TESSERA_REQUIRE(tokens.sequences.longest <= positions(),
                  "T5 takes sequences of at most {} tokens, given {}", positions(),
                  tokens.sequences.longest);
  return encoder_(shared_(tokens.ids), tokens.sequences);
}

TokenRows T5Encoder::rows_of(const TokenBatch& tokens) const {
  return numbered_rows(tokens, 0, positions());
}

HuggingFaceNames T5Encoder::hugging_face_names() const {
  HuggingFaceNames names;
  constexpr const char* copy = "encoder.embed_tokens.weight";
  names.aliases = [](const std::string& name) {
    if (name == "shared.weight") return std::vector<std::string>{name, copy};
    return std::vector<std::string>{name};
  };
  names.ignored = {copy, "decoder.embed_tokens.weight", "decoder.final_layer_norm.weight",
                   "lm_head.weight", "decoder.block.#.layer.#.layer_norm.weight"};
  for (const char* part :
       {"SelfAttention.q", "SelfAttention.k", "SelfAttention.v", "SelfAttention.o",
        "SelfAttention.relative_attention_bias", "EncDecAttention.q", "EncDecAttention.k",
        "EncDecAttention.v", "EncDecAttention.o", "EncDecAttention.relative_attention_bias",
        "DenseReluDense.wi", "DenseReluDense.wi_0", "DenseReluDense.wi_1", "DenseReluDense.wo"}) {
    names.ignored.push_back(std::string("decoder.block.#.layer.#.") + part + ".weight");
  }
  return names;
}

}  // namespace tessera::models
