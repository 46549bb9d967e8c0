// Llama's attention, whole and with a cache.
#include "models/llama/attention.h"

#include <cmath>
#include <utility>
#include <vector>

#include "engine/tensor_ops.h"

namespace tessera::models {

nn::RmsNorm decoder_norm(std::int64_t dim, const LlamaConfig& config) {
  return nn::RmsNorm(dim, config.rms_norm_eps, config.family->norm_offset);
}

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config, std::int64_t layer)
    : head_dim_(config.head_dim),
      dropout_(config.attention_dropout),
      has_positions_(config.has_rotary_positions(layer)),
      norms_heads_(config.family->query_key_norm == QueryKeyNorm::of_heads),
      has_sinks_(config.family->has_sinks) {
  options_.heads = config.num_attention_heads;
  options_.key_heads = config.num_key_value_heads;
  options_.causal = true;
  options_.window = config.window_of(layer);
  if (config.query_pre_attn_scalar)
    options_.scale = 1 / std::sqrt(static_cast<double>(*config.query_pre_attn_scalar));
  const std::int64_t width = config.hidden_size;
  const std::int64_t query_width = config.num_attention_heads * config.head_dim;
  const std::int64_t key_width = config.num_key_value_heads * config.head_dim;
  const nn::LinearOptions inputs{.bias = config.attention_bias,
                                 .deviation = config.initializer_range};
  const nn::LinearOptions output{.bias = config.output_bias, .deviation = config.initializer_range};
  if (config.family->fused_projections) {
    qkv_proj_ = register_module("qkv_proj", nn::Linear(width, query_width + 2 * key_width, inputs));
  } else {
    q_proj_ = register_module("q_proj", nn::Linear(width, query_width, inputs));
    k_proj_ = register_module("k_proj", nn::Linear(width, key_width, inputs));
    v_proj_ = register_module("v_proj", nn::Linear(width, key_width, inputs));
  }
  o_proj_ = register_module("o_proj", nn::Linear(query_width, width, output));
  if (has_sinks_) {
    register_parameter("sinks", nn::make_parameter({config.num_attention_heads},
                                                   nn::normal(0, config.initializer_range)));
  }
  if (config.family->query_key_norm == QueryKeyNorm::none) return;
  q_norm_ = register_module("q_norm", decoder_norm(norms_heads_ ? head_dim_ : query_width, config));
  k_norm_ = register_module("k_norm", decoder_norm(norms_heads_ ? head_dim_ : key_width, config));
}

AttentionOptions LlamaAttentionImpl::options() const {
  AttentionOptions options = options_;
  if (has_sinks_) options.sinks = parameter("sinks");
  return options;
}

template <class Apply>
LlamaAttentionImpl::Projected LlamaAttentionImpl::project(const Tensor& x,
                                                          const Apply& apply) const {
  if (qkv_proj_) {
    const std::int64_t keys = options_.key_heads * head_dim_;
    const std::vector<Tensor> parts =
        split(apply(qkv_proj_, x), {options_.heads * head_dim_, keys, keys}, -1);
    return {parts[0], parts[1], parts[2]};
  }
  return {normalised(q_norm_, apply(q_proj_, x)), normalised(k_norm_, apply(k_proj_, x)),
          apply(v_proj_, x)};
}

Tensor LlamaAttentionImpl::normalised(const nn::RmsNorm& norm, const Tensor& x) const {
  if (!norm) return x;
  if (!norms_heads_) return norm(x);
  return reshape(norm(reshape(x, {x.size(0), x.size(1), -1, head_dim_})), x.shape());
}

Tensor LlamaAttentionImpl::rotated(const Tensor& x, std::int64_t heads, const RopeTables& rope,
                                   std::int64_t first) const {
  if (!has_positions_) return x;
  if (rope.document_starts.defined() && x.size(0) > 1) {
    const Tensor row = reshape(x, {1, x.size(0) * x.size(1), x.size(2)});
    return reshape(rotated(row, heads, rope, first), x.shape());
  }
  const std::int64_t turned = 2 * rope.cosine.size(1);
  if (turned == head_dim_) return rotary(x, heads, rope.cosine, rope.sine, first);
  const std::vector<Tensor> parts =
      split(reshape(x, {x.size(0), x.size(1), heads, head_dim_}), {turned, head_dim_ - turned}, -1);
  const Tensor front = rotary(reshape(parts[0], {x.size(0), x.size(1), heads * turned}), heads,
                              rope.cosine, rope.sine, first);
  return reshape(concatenate({reshape(front, parts[0].shape()), parts[1]}, -1), x.shape());
}

Tensor LlamaAttentionImpl::forward(const Tensor& x, const RopeTables& rope) const {
  AttentionOptions options = this->options();
  options.dropout = is_training() ? dropout_ : 0.0;
  options.document_starts = rope.document_starts;
  Projected projected =
      project(x, [](const nn::Linear& layer, const Tensor& input) { return layer(input); });
  // The rotation reads nothing of its input in backward, which ends here.
  projected.q = rotated(projected.q, options.heads, rope, rope.first);
  projected.k = rotated(projected.k, options.key_heads, rope, rope.first);
  auto& [q, k, v] = projected;
  return o_proj_(rope.ranks
                     ? rope.ranks->attention(std::move(q), std::move(k), std::move(v), options)
                     : attention(q, k, v, options));
}

Tensor LlamaAttentionImpl::decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                                  const DecodingBatch& batch) const {
  const Projected projected = project(x, decode_layer);
  const AttentionOptions options = this->options();
  const Tensor attended = batch.attend_each([&](KeyValueCache& cache, std::int64_t place) {
    const auto turned = [&](const Tensor& rows, std::int64_t heads) {
      return rotated(rows_of(rows, place, batch.tokens()), heads, rope, cache.length());
    };
    const CachedRows cached = cache.append(layer, turned(projected.k, options_.key_heads),
                                           rows_of(projected.v, place, batch.tokens()));
    return cached_attention(turned(projected.q, options_.heads), head_dim_, cached, options);
  });
  return decode_layer(o_proj_, attended);
}

}  // namespace tessera::models
