// Llama's attention: grouped key heads, rotary positions, and what its families add.
#pragma once

#include <cstdint>

#include "engine/nn/layers.h"
#include "models/language_model.h"
#include "models/llama/llama_config.h"
#include "models/llama/rope.h"

namespace tessera::models {

// A norm of `dim` elements as the family has it.
nn::RmsNorm decoder_norm(std::int64_t dim, const LlamaConfig& config);

class LlamaAttentionImpl : public nn::Module {
 public:
  LlamaAttentionImpl(const LlamaConfig& config, std::int64_t layer);
  Tensor forward(const Tensor& x, const RopeTables& rope) const;
  Tensor decode(const Tensor& x, const RopeTables& rope, std::int64_t layer,
                const DecodingBatch& batch) const;

 private:
  // Queries and keys have no positions yet.
  struct Projected {
    Tensor q, k, v;
  };
  // The options of a call, with what the parameters give.
  [[nodiscard]] AttentionOptions options() const;
  // apply(layer, x) computes a linear layer.
  template <class Apply>
  Projected project(const Tensor& x, const Apply& apply) const;
  Tensor normalised(const nn::RmsNorm& norm, const Tensor& x) const;
  // x [batch, T, heads * head_dim] at positions first + t, or at those of the batch's tables.
  Tensor rotated(const Tensor& x, std::int64_t heads, const RopeTables& rope,
                 std::int64_t first = 0) const;

  AttentionOptions options_;
  std::int64_t head_dim_;
  double dropout_;
  bool has_positions_;
  bool norms_heads_;
  bool has_sinks_;
  nn::Linear q_proj_, k_proj_, v_proj_;  // empty if fused
  nn::Linear qkv_proj_;                  // empty unless fused
  nn::Linear o_proj_;
  nn::RmsNorm q_norm_, k_norm_;  // empty in most families
};
TESSERA_MODULE(LlamaAttention);

}  // namespace tessera::models
