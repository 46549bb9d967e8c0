// Layers with norms before or after their parts.
#include "models/llama/decoder_layer.h"

#include <memory>
#include <vector>

#include "engine/tensor_ops.h"
#include "models/own_call.h"

namespace tessera::models {

LlamaMLPImpl::LlamaMLPImpl(const LlamaConfig& config)
    : gates_by_gelu_(config.hidden_act == "gelu_pytorch_tanh") {
  const std::int64_t width = config.hidden_size;
  const std::int64_t inner = config.intermediate_size;
  const nn::LinearOptions options{.bias = config.mlp_bias, .deviation = config.initializer_range};
  if (config.family->fused_projections) {
    gate_up_proj_ = register_module("gate_up_proj", nn::Linear(width, 2 * inner, options));
  } else {
    gate_proj_ = register_module("gate_proj", nn::Linear(width, inner, options));
    up_proj_ = register_module("up_proj", nn::Linear(width, inner, options));
  }
  down_proj_ = register_module("down_proj", nn::Linear(inner, width, options));
}

template <class Apply>
std::pair<Tensor, Tensor> LlamaMLPImpl::gate_and_up(const Tensor& x, const Apply& apply) const {
  if (!gate_up_proj_) return {apply(gate_proj_, x), apply(up_proj_, x)};
  const std::vector<Tensor> halves = chunk(apply(gate_up_proj_, x), 2, -1);
  return {halves[0], halves[1]};
}

Tensor LlamaMLPImpl::gated(const Tensor& gate, const Tensor& up) const {
  return (gates_by_gelu_ ? gelu(gate, false) : silu(gate)) * up;
}

Tensor LlamaMLPImpl::forward(const Tensor& x) const {
  const auto [gate, up] =
      gate_and_up(x, [](const nn::Linear& layer, const Tensor& input) { return layer(input); });
  if (gates_by_gelu_ || needs_own_call(down_proj_)) return down_proj_(gated(gate, up));
  const Tensor y = swiglu_linear(gate, up, down_proj_->weight(), down_proj_->layout());
  const Tensor bias = down_proj_->bias();
  return bias ? y + bias : y;
}

Tensor LlamaMLPImpl::decode(const Tensor& x) const {
  const auto [gate, up] = gate_and_up(x, decode_layer);
  return decode_layer(down_proj_, gated(gate, up));
}

DecoderLayerImpl::DecoderLayerImpl(const LlamaConfig& config)
    : class_name_(config.family->layer_class), dropout_(config.residual_dropout) {}

Tensor DecoderLayerImpl::branch(const Tensor& x) const {
  return dropout(x, is_training() ? dropout_ : 0.0);
}

Tensor DecoderLayerImpl::decode_attention(const LlamaAttention& attention, const Tensor& x,
                                          const RopeTables& rope, std::int64_t layer,
                                          const DecodingBatch& batch) {
  return attention.call(
      [&](const LlamaAttentionImpl& impl) { return impl.decode(x, rope, layer, batch); });
}

Tensor DecoderLayerImpl::decode_mlp(const LlamaMLP& mlp, const Tensor& x) {
  return mlp.call([&](const LlamaMLPImpl& impl) { return impl.decode(x); });
}

LlamaDecoderLayerImpl::LlamaDecoderLayerImpl(const LlamaConfig& config, std::int64_t layer)
    : DecoderLayerImpl(config) {
  input_layernorm_ = register_module("input_layernorm", decoder_norm(config.hidden_size, config));
  self_attn_ = register_module("self_attn", LlamaAttention(config, layer));
  post_attention_layernorm_ =
      register_module("post_attention_layernorm", decoder_norm(config.hidden_size, config));
  mlp_ = register_module("mlp", LlamaMLP(config));
}

Tensor LlamaDecoderLayerImpl::forward(const Tensor& x, const RopeTables& rope) const {
  const auto [stream, normalised] =
      post_attention_layernorm_(branch(self_attn_(input_layernorm_(x), rope)), x);
  return stream + branch(mlp_(normalised));
}

Tensor LlamaDecoderLayerImpl::decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                                     const DecodingBatch& batch) const {
  const auto [stream, normalised] = post_attention_layernorm_(
      decode_attention(self_attn_, input_layernorm_(x), rope, layer, batch), x);
  return stream + decode_mlp(mlp_, normalised);
}

SparseDecoderLayerImpl::SparseDecoderLayerImpl(const LlamaConfig& config, std::int64_t layer)
    : DecoderLayerImpl(config) {
  const ExpertNames& names = *config.family->experts;
  input_layernorm_ = register_module("input_layernorm", decoder_norm(config.hidden_size, config));
  self_attn_ = register_module("self_attn", LlamaAttention(config, layer));
  post_attention_layernorm_ =
      register_module("post_attention_layernorm", decoder_norm(config.hidden_size, config));
  MixtureOfExpertsOptions options{.width = config.hidden_size,
                                  .inner = config.experts.moe_intermediate_size,
                                  .experts = config.experts.num_experts,
                                  .per_token = config.experts.num_experts_per_tok,
                                  .normalized = config.experts.norm_topk_prob,
                                  .deviation = config.initializer_range,
                                  .gate = names.gate,
                                  .up = names.up,
                                  .down = names.down,
                                  .router = names.router,
                                  .router_bias = names.stacked};
  if (names.stacked) {
    options.stacked = {.alpha = config.experts.swiglu_alpha, .limit = config.experts.swiglu_limit};
  }
  mixture_ = register_module(names.block, MixtureOfExperts(options));
}

std::pair<Tensor, Tensor> SparseDecoderLayerImpl::attend(const Tensor& x,
                                                         const RopeTables& rope) const {
  return post_attention_layernorm_(branch(self_attn_(input_layernorm_(x), rope)), x);
}

Tensor SparseDecoderLayerImpl::forward(const Tensor& x, const RopeTables& rope) const {
  const auto [stream, normalised] = attend(x, rope);
  return stream + branch(mixture_(normalised));
}

std::pair<Tensor, Tensor> SparseDecoderLayerImpl::forward(const Tensor& x, const RopeTables& rope,
                                                          const Tensor& routing) const {
  const auto [stream, normalised] = attend(x, rope);
  const auto [mixed, added] = mixture_(normalised, routing);
  return {stream + branch(mixed), added};
}

Tensor SparseDecoderLayerImpl::decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                                      const DecodingBatch& batch) const {
  const auto [stream, normalised] = post_attention_layernorm_(
      decode_attention(self_attn_, input_layernorm_(x), rope, layer, batch), x);
  return stream + mixture_.call([&rows = normalised](const MixtureOfExpertsImpl& impl) {
    return impl.decode(rows);
  });
}

Olmo2DecoderLayerImpl::Olmo2DecoderLayerImpl(const LlamaConfig& config, std::int64_t layer)
    : DecoderLayerImpl(config) {
  self_attn_ = register_module("self_attn", LlamaAttention(config, layer));
  mlp_ = register_module("mlp", LlamaMLP(config));
  post_attention_layernorm_ =
      register_module("post_attention_layernorm", decoder_norm(config.hidden_size, config));
  post_feedforward_layernorm_ =
      register_module("post_feedforward_layernorm", decoder_norm(config.hidden_size, config));
}

Tensor Olmo2DecoderLayerImpl::forward(const Tensor& x, const RopeTables& rope) const {
  const Tensor stream = x + branch(post_attention_layernorm_(self_attn_(x, rope)));
  return stream + branch(post_feedforward_layernorm_(mlp_(stream)));
}

Tensor Olmo2DecoderLayerImpl::decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                                     const DecodingBatch& batch) const {
  const Tensor stream =
      x + post_attention_layernorm_(decode_attention(self_attn_, x, rope, layer, batch));
  return stream + post_feedforward_layernorm_(decode_mlp(mlp_, stream));
}

Gemma3DecoderLayerImpl::Gemma3DecoderLayerImpl(const LlamaConfig& config, std::int64_t layer)
    : DecoderLayerImpl(config) {
  const auto norm = [&](const char* name) {
    return register_module(name, decoder_norm(config.hidden_size, config));
  };
  self_attn_ = register_module("self_attn", LlamaAttention(config, layer));
  mlp_ = register_module("mlp", LlamaMLP(config));
  input_layernorm_ = norm("input_layernorm");
  post_attention_layernorm_ = norm("post_attention_layernorm");
  pre_feedforward_layernorm_ = norm("pre_feedforward_layernorm");
  post_feedforward_layernorm_ = norm("post_feedforward_layernorm");
}

Tensor Gemma3DecoderLayerImpl::forward(const Tensor& x, const RopeTables& rope) const {
  const Tensor attended = post_attention_layernorm_(self_attn_(input_layernorm_(x), rope));
  const auto [stream, normalised] = pre_feedforward_layernorm_(branch(attended), x);
  return stream + branch(post_feedforward_layernorm_(mlp_(normalised)));
}

Tensor Gemma3DecoderLayerImpl::decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                                      const DecodingBatch& batch) const {
  const Tensor attended = post_attention_layernorm_(
      decode_attention(self_attn_, input_layernorm_(x), rope, layer, batch));
  const auto [stream, normalised] = pre_feedforward_layernorm_(attended, x);
  return stream + post_feedforward_layernorm_(decode_mlp(mlp_, normalised));
}

DecoderLayer make_decoder_layer(const LlamaConfig& config, std::int64_t layer) {
  if (config.has_experts(layer)) {
    return DecoderLayer(std::make_shared<SparseDecoderLayerImpl>(config, layer));
  }
  switch (config.family->norms) {
    case NormPlace::before:
      break;
    case NormPlace::after:
      return DecoderLayer(std::make_shared<Olmo2DecoderLayerImpl>(config, layer));
    case NormPlace::around:
      return DecoderLayer(std::make_shared<Gemma3DecoderLayerImpl>(config, layer));
  }
  return DecoderLayer(std::make_shared<LlamaDecoderLayerImpl>(config, layer));
}

}  // namespace tessera::models
