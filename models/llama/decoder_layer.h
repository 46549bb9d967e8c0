// The layers of Llama and of the models of its build.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "models/llama/attention.h"
#include "models/mixture_of_experts.h"

namespace tessera::models {

class LlamaMLPImpl : public nn::Module {
 public:
  explicit LlamaMLPImpl(const LlamaConfig& config);
  Tensor forward(const Tensor& x) const;
  Tensor decode(const Tensor& x) const;
  // down_proj's product also computes the gated activation.
  [[nodiscard]] bool is_indivisible() const override { return true; }

 private:
  [[nodiscard]] Tensor gated(const Tensor& gate, const Tensor& up) const;
  // apply(layer, x) computes a linear layer.
  template <class Apply>
  std::pair<Tensor, Tensor> gate_and_up(const Tensor& x, const Apply& apply) const;

  nn::Linear gate_proj_, up_proj_;  // empty if fused
  nn::Linear gate_up_proj_;         // empty unless fused
  nn::Linear down_proj_;
  bool gates_by_gelu_;  // otherwise by SiLU
};
TESSERA_MODULE(LlamaMLP);

class DecoderLayerImpl : public nn::Module {
 public:
  virtual Tensor forward(const Tensor& x, const RopeTables& rope) const = 0;
  // The same, and `routing` with the layer's mixture of experts added (no_routing()); a layer
  // without one returns it unchanged.
  virtual std::pair<Tensor, Tensor> forward(const Tensor& x, const RopeTables& rope,
                                            const Tensor& routing) const {
    return {forward(x, rope), routing};
  }
  virtual Tensor decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                        const DecodingBatch& batch) const = 0;
  // The class's name in transformers, by family.
  [[nodiscard]] std::string class_name() const override { return class_name_; }

 protected:
  explicit DecoderLayerImpl(const LlamaConfig& config);
  // The output of a residual branch after its dropout.
  [[nodiscard]] Tensor branch(const Tensor& x) const;
  // The calls of the children while a sequence is continued.
  static Tensor decode_attention(const LlamaAttention& attention, const Tensor& x,
                                 const RopeTables& rope, std::int64_t layer,
                                 const DecodingBatch& batch);
  static Tensor decode_mlp(const LlamaMLP& mlp, const Tensor& x);

 private:
  std::string class_name_;
  double dropout_;
};
TESSERA_MODULE(DecoderLayer);

// The norms stand before attention and MLP.
class LlamaDecoderLayerImpl : public DecoderLayerImpl {
 public:
  LlamaDecoderLayerImpl(const LlamaConfig& config, std::int64_t layer);
  using DecoderLayerImpl::forward;
  Tensor forward(const Tensor& x, const RopeTables& rope) const override;
  Tensor decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                const DecodingBatch& batch) const override;

 private:
  nn::RmsNorm input_layernorm_;
  LlamaAttention self_attn_;
  nn::RmsNorm post_attention_layernorm_;
  LlamaMLP mlp_;
};

// The norms stand before attention and a mixture of experts.
class SparseDecoderLayerImpl : public DecoderLayerImpl {
 public:
  SparseDecoderLayerImpl(const LlamaConfig& config, std::int64_t layer);
  Tensor forward(const Tensor& x, const RopeTables& rope) const override;
  std::pair<Tensor, Tensor> forward(const Tensor& x, const RopeTables& rope,
                                    const Tensor& routing) const override;
  Tensor decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                const DecodingBatch& batch) const override;

 private:
  // The residual stream after attention, and its norm.
  [[nodiscard]] std::pair<Tensor, Tensor> attend(const Tensor& x, const RopeTables& rope) const;

  nn::RmsNorm input_layernorm_;
  LlamaAttention self_attn_;
  nn::RmsNorm post_attention_layernorm_;
  MixtureOfExperts mixture_;
};

// The norms stand after attention and MLP, in the residual branches.
class Olmo2DecoderLayerImpl : public DecoderLayerImpl {
 public:
  Olmo2DecoderLayerImpl(const LlamaConfig& config, std::int64_t layer);
  using DecoderLayerImpl::forward;
  Tensor forward(const Tensor& x, const RopeTables& rope) const override;
  Tensor decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                const DecodingBatch& batch) const override;

 private:
  LlamaAttention self_attn_;
  LlamaMLP mlp_;
  nn::RmsNorm post_attention_layernorm_;
  nn::RmsNorm post_feedforward_layernorm_;
};

// The norms stand before and after attention and MLP.
class Gemma3DecoderLayerImpl : public DecoderLayerImpl {
 public:
  Gemma3DecoderLayerImpl(const LlamaConfig& config, std::int64_t layer);
  using DecoderLayerImpl::forward;
  Tensor forward(const Tensor& x, const RopeTables& rope) const override;
  Tensor decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                const DecodingBatch& batch) const override;

 private:
  nn::RmsNorm input_layernorm_;
  LlamaAttention self_attn_;
  nn::RmsNorm post_attention_layernorm_;
  nn::RmsNorm pre_feedforward_layernorm_;
  LlamaMLP mlp_;
  nn::RmsNorm post_feedforward_layernorm_;
};

// The layer of the configuration's family; `layer` counts from 0.
DecoderLayer make_decoder_layer(const LlamaConfig& config, std::int64_t layer);

}  // namespace tessera::models
