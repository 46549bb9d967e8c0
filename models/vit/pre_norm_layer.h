// The layer of ViT and CLIP: a norm, attention and the residual's addition, then a norm, a
// feed-forward block and the residual's addition (pre-norm). The models differ in their parameters'
// names.
//
// A layer keeps for backward, in units of [samples, rows, width] with inner = 4 width, 10 in all:
// its input 1, queries, keys and values 3, the attention's output 1, the stream after the attention
// 1 and the feed-forward's pre-activation 4. Both norms' outputs are computed again. An activation
// other than gelu keeps the activated values, 4, too.
#pragma once

#include <cstdint>

#include "engine/nn/layers.h"
#include "models/module_places.h"
#include "models/vit/activation.h"

namespace tessera::models {

struct PreNormOptions {
  std::int64_t width = 0, inner = 0, heads = 0;
  double eps = 1e-5;  // of the norms
  bool qkv_bias = true;
  bool causal = false;
  Activation activation = Activation::gelu;
  double dropout = 0;  // of both residual branches
  double attention_dropout = 0;
  // Deviations of the initial weights: queries, keys and values; the attention's output; into and
  // out of the feed-forward block.
  double qkv_deviation = 0.02, attention_output_deviation = 0.02, inner_deviation = 0.02,
         output_deviation = 0.02;
};

class PreNormLayerImpl : public nn::Module {
 public:
  PreNormLayerImpl(const PreNormOptions& options, const EncoderLayerNames& names);
  // x [samples, rows, width].
  Tensor forward(const Tensor& x) const;
  // The output's product also adds the intermediate bias.
  [[nodiscard]] bool is_indivisible() const override { return true; }

 private:
  [[nodiscard]] Tensor feed(const Tensor& x) const;

  PreNormOptions options_;
  nn::Linear query_, key_, value_, attention_output_, intermediate_, output_;
  nn::LayerNorm attention_norm_, output_norm_;
};

}  // namespace tessera::models
