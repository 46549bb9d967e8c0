// The rounding of ggml's q8_0 and q4_0 by tensor operations, with the same intermediate results.
#include "engine/nn/weight_rounding.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

// The largest integers that are not above values from 0 to 2^22.
Tensor floor_of(const Tensor& values) {
  constexpr double unit_spacing = 0x1p23;  // float32 numbers from here on are integers
  const Tensor nearest = affine(affine(values, 1, unit_spacing), 1, -unit_spacing);
  return where(less(values, nearest), nearest - 1.0, nearest);
}

// 1 / scale; 0 where that overflows, because float16 holds such a scale as 0.
Tensor inverse_of(const Tensor& scale) {
  const Tensor inverse = reciprocal(scale);
  return masked_fill(inverse, equal(abs(inverse), std::numeric_limits<double>::infinity()), 0);
}

// As readers of a file get a scale.
Tensor stored(const Tensor& scale) {
  return cast(cast(scale, float16), float32);
}

// [blocks, 32], float32.
Tensor round_q8_0(const Tensor& blocks) {
  const Tensor largest = max(abs(blocks), -1, true);
  const Tensor scale = largest / Tensor::full({1}, 127.0, float32, blocks.device());
  const Tensor scaled = blocks * inverse_of(scale);
  const Tensor magnitude = abs(scaled);
  const Tensor whole = floor_of(magnitude);
  const Tensor rounded = where(less(magnitude - whole, 0.5), whole, whole + 1.0);
  return where(less(scaled, 0.0), -rounded, rounded) * stored(scale);
}

// [blocks, 32], float32. The element of the largest magnitude gets -8 of -8 to 7.
Tensor round_q4_0(const Tensor& blocks) {
  const Tensor scale = gather(blocks, -1, argmax(abs(blocks), -1, true)) * -0.125;
  const Tensor shifted = blocks * inverse_of(scale) + 8.5;
  return (clamp(floor_of(shifted), 0, 15) - 8.0) * stored(scale);
}

Tensor rounded_values(const Tensor& x, WeightRounding rounding) {
  const Tensor blocks =
      reshape(cast(x, float32), {x.elements() / rounded_together, rounded_together});
  const Tensor rounded = rounding == WeightRounding::q8_0 ? round_q8_0(blocks) : round_q4_0(blocks);
  return cast(reshape(rounded, x.shape()), x.dtype());
}

}  // namespace

Tensor round_to_blocks(const Tensor& x, WeightRounding rounding) {
  if (rounding == WeightRounding::none) return x;
  TESSERA_REQUIRE(
      x.dimensions() > 0 && x.size(-1) % rounded_together == 0 && is_floating(x.dtype()),
      "round_to_blocks of {} {}: blocks hold {} floating numbers of the last dimension",
      name_of(x.dtype()), x.shape().to_string(), rounded_together);
  Tensor out;
  {
    const NoGradGuard values_only;
    out = rounded_values(x, rounding);
  }
  autograd::record(
      {Op::custom, "round_to_blocks"}, {x}, {out},
      [](std::vector<Tensor>& dout, autograd::GradientSink& sink) { sink.add(0, dout[0]); },
      autograd::Reads::nothing);
  return out;
}

std::vector<std::string> round_weights(nn::Module& module, WeightRounding rounding,
                                       const std::vector<std::string>& except) {
  std::vector<std::string> rounded;
  for (const auto& [name, part] : module.named_modules()) {
    const std::string last = name.substr(name.rfind('.') + 1);
    if (std::find(except.begin(), except.end(), last) != except.end()) continue;
    bool fits = false;
    if (auto* const layer = dynamic_cast<nn::LinearImpl*>(part)) {
      fits = layer->round_weight(rounding);
    } else if (auto* const table = dynamic_cast<nn::EmbeddingImpl*>(part)) {
      fits = table->round_weight(rounding);
    }
    if (fits) rounded.push_back(name);
  }
  TESSERA_CHECK(!rounded.empty(), ErrorCode::configuration,
                "no layer's weights can be rounded: the inputs of a layer must be a multiple of {}",
                rounded_together);
  return rounded;
}

}  // namespace tessera
