// T5's decoder, whole and row by row.
#include "models/t5/t5_decoder.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "engine/tensor_ops.h"
#include "models/bert/encoder_layer.h"
#include "models/mpnet/mpnet.h"

namespace tessera::models {
namespace {

// Added to the score of a key that is not seen. e to the power of it is 0, and no difference of two
// scores becomes NaN, as with infinity.
constexpr double unseen = -1e30;

double root_of(std::int64_t size) {
  return std::sqrt(static_cast<double>(size));
}

}  // namespace

T5CrossAttentionImpl::T5CrossAttentionImpl(const T5Config& config) {
  options_.heads = config.num_heads;
  options_.dropout = config.dropout_rate;
  options_.scale = 1;
  const std::int64_t width = config.d_model, inner = config.inner();
  q_ = register_module("q", t5_projection(config, width, inner, root_of(width * config.d_kv)));
  k_ = register_module("k", t5_projection(config, width, inner, root_of(width)));
  v_ = register_module("v", t5_projection(config, width, inner, root_of(width)));
  o_ = register_module("o", t5_projection(config, inner, width, root_of(inner)));
}

Tensor T5CrossAttentionImpl::forward(const Tensor& x, const Sequences& sequences,
                                     const Tensor& states, const Tensor& mask) const {
  AttentionOptions options = options_;
  options.key_mask = mask;
  if (!is_training()) options.dropout = 0;
  const std::int64_t batch = states.size(0);
  const Tensor q = project_rows(q_, x, sequences);
  const Tensor context =
      attention(reshape(q, {batch, q.size(0) / batch, q.size(1)}), k_(states), v_(states), options);
  return project_rows(o_, reshape(context, q.shape()), sequences);
}

T5CrossAttentionImpl::Projected T5CrossAttentionImpl::keys_of(const Tensor& states) const {
  return {k_(states), v_(states)};
}

Tensor T5CrossAttentionImpl::decode(const Tensor& x, const Projected& source,
                                    const Tensor& mask) const {
  AttentionOptions options = options_;
  options.key_mask = mask;
  options.dropout = 0;
  const Tensor q = q_(x);
  const Tensor context = attention(unsqueeze(q, 1), source.keys, source.values, options);
  return o_(squeeze(context, 1));
}

T5DecoderBlockImpl::T5DecoderBlockImpl(const T5Config& config, bool is_first)
    : dropout_(config.dropout_rate) {
  const auto names = [] { return Names(std::make_shared<NamesImpl>()); };
  const Names layer = register_module("layer", names());
  const Names first = layer->add("0", names());
  attention_ = first->add("SelfAttention", T5Attention(config, is_first));
  attention_norm_ = first->add("layer_norm", t5_norm(config));
  const Names second = layer->add("1", names());
  cross_attention_ = second->add("EncDecAttention", T5CrossAttention(config));
  cross_attention_norm_ = second->add("layer_norm", t5_norm(config));
  const Names third = layer->add("2", names());
  feed_forward_ = third->add("DenseReluDense", T5FeedForward(config));
  feed_forward_norm_ = third->add("layer_norm", t5_norm(config));
}

Tensor T5DecoderBlockImpl::forward(const Tensor& x, const Sequences& sequences, const Tensor& bias,
                                   const Tensor& states, const Tensor& mask) const {
  const double dropout = is_training() ? dropout_ : 0;
  const auto dropped = [&](const Tensor& y) { return sequence_dropout(y, dropout, sequences); };
  const Tensor attended = dropped(attention_(attention_norm_(x), sequences, bias));
  const auto [own, to_cross] = cross_attention_norm_(attended, x);
  const Tensor crossed = dropped(cross_attention_(to_cross, sequences, states, mask));
  const auto [sum, to_feed] = feed_forward_norm_(crossed, own);
  return sum + dropped(feed_forward_(to_feed, sequences));
}

Tensor T5DecoderBlockImpl::decode(const Tensor& x, const Sequences& sequences, const Tensor& bias,
                                  const T5Source& source, T5BlockCache& cache) const {
  if (!cache.source.keys.defined()) cache.source = cross_attention_->keys_of(source.states);
  const Tensor attended = attention_->decode(attention_norm_(x), bias, cache.own);
  const auto [own, to_cross] = cross_attention_norm_(attended, x);
  const Tensor crossed = cross_attention_->decode(to_cross, cache.source, source.mask);
  const auto [sum, to_feed] = feed_forward_norm_(crossed, own);
  return sum + feed_forward_(to_feed, sequences);
}

T5DecoderImpl::T5DecoderImpl(const T5GenerationConfig& config)
    : buckets_(config.relative_attention_num_buckets),
      furthest_(config.relative_attention_max_distance),
      positions_(config.n_positions),
      dropout_(config.dropout_rate) {
  std::vector<T5DecoderBlock> blocks;
  for (std::int64_t i = 0; i < config.num_decoder_layers; ++i) blocks.emplace_back(config, i == 0);
  block_ = register_module("block", nn::ModuleList<T5DecoderBlock>(std::move(blocks)));
  norm_ = register_module("final_layer_norm", t5_norm(config));
  reads_parameter((*block_)[0]->distance_table());
}

Tensor T5DecoderImpl::distances_before(std::int64_t count, Device device) const {
  std::vector<std::int32_t> rows;
  for (std::int64_t d = 1 - count; d <= 0; ++d) {
    rows.push_back(distance_bucket(d, {.side = static_cast<std::int32_t>(buckets_),
                                       .furthest = static_cast<float>(furthest_)}));
  }
  const Tensor bias =
      embedding(Tensor::from(rows, {count}).to(device), (*block_)[0]->distance_table());
  return bias.dtype() == float64 ? bias : cast(bias, float32);
}

Tensor T5DecoderImpl::causal_bias(std::int64_t longest, Device device) const {
  Tensor before = distances_before(longest, device);
  if (longest == 1) return before;
  const Tensor after = Tensor::full({longest - 1, before.size(1)}, unseen, before.dtype(), device);
  return concatenate({before, after}, 0);
}

Tensor T5DecoderImpl::forward(const Tensor& x, const Sequences& sequences, const Tensor& states,
                              const Tensor& mask) const {
  const double dropout = is_training() ? dropout_ : 0;
  const Tensor bias = causal_bias(sequences.longest, x.device());
  Tensor y = sequence_dropout(x, dropout, sequences);
  for (const T5DecoderBlock& block : *block_) y = block(y, sequences, bias, states, mask);
  return sequence_dropout(norm_(y), dropout, sequences);
}

T5Writing T5DecoderImpl::begin(T5Source source, std::int64_t max_rows) const {
  const Device device = source.states.device();
  const std::int64_t batch = source.states.size(0);
  return {.source = std::move(source),
          .rows = equal_sequences(batch, 1, positions_, device),
          .bias = unsqueeze(transpose(distances_before(max_rows, device), 0, 1), 1),
          .written = 0,
          .blocks = std::vector<T5BlockCache>(block_->size())};
}

Tensor T5DecoderImpl::decode(const Tensor& x, T5Writing& writing) const {
  const std::int64_t rows = ++writing.written;
  const Tensor bias = narrow(writing.bias, 2, writing.bias.size(2) - rows, rows);
  Tensor y = x;
  for (std::size_t i = 0; i < writing.blocks.size(); ++i) {
    y = (*block_)[i]->decode(y, writing.rows, bias, writing.source, writing.blocks[i]);
  }
  return norm_(y);
}

}  // namespace tessera::models
