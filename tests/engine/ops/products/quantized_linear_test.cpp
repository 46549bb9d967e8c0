// Linear layers with a weight of codes: the bits of the numbers' matrix, in both layouts, alone and
// fused, forward and backward, in tiles.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "engine/device/memory.h"
#include "engine/nn/lora.h"
#include "engine/ops/products/quantized.h"
#include "engine/ops/tensor_of.h"
#include "engine/random.h"
#include "engine/tensor_ops.h"
#include "support/errors.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

constexpr QuantizedFormat all_formats[] = {QuantizedFormat::nf4, QuantizedFormat::int8};
constexpr WeightLayout layouts[] = {WeightLayout::out_in, WeightLayout::in_out};

struct QuantizedLayer {
  Tensor codes, numbers;
};

QuantizedLayer layer_of(std::int64_t in, std::int64_t out, WeightLayout layout,
                        QuantizedFormat format, DType dtype) {
  const bool out_first = layout == WeightLayout::out_in;
  const Tensor matrix =
      testing::values(out_first ? Shape{out, in} : Shape{in, out}, static_cast<unsigned>(in + out));
  const Tensor codes = quantize(matrix, format);
  return {codes, dequantize(codes, matrix.size(0), matrix.size(1), dtype)};
}

Tensor input(const Shape& shape, unsigned seed, DType dtype) {
  Tensor x = cast(testing::values(shape, seed), dtype);
  x.set_requires_grad(true);
  return x;
}

// The result and the gradients of the inputs are the same with codes and with their numbers.
void expect_same_as_numbers(
    const QuantizedLayer& layer, const std::vector<Shape>& shapes, DType dtype,
    const std::function<Tensor(const std::vector<Tensor>&, const Tensor&)>& op,
    const std::string& what) {
  std::vector<std::vector<double>> wanted, got;
  for (const Tensor& weight : {layer.numbers, layer.codes}) {
    std::vector<Tensor> inputs;
    for (const Shape& shape : shapes) {
      inputs.push_back(input(shape, static_cast<unsigned>(1 + inputs.size()), dtype));
    }
    const Tensor y = op(inputs, weight);
    EXPECT_EQ(y.dtype(), dtype) << what;
    sum(y * cast(testing::values(y.shape(), 31), dtype)).backward();
    auto& results = weight.dtype() == uint8 ? got : wanted;
    results.push_back(y.to_vector());
    for (const Tensor& each : inputs) results.push_back(each.grad().to_vector());
  }
  EXPECT_EQ(got, wanted) << what;
}

TEST(QuantizedLinear, HasTheBitsOfTheNumbersMatrix) {
  for (const QuantizedFormat format : all_formats) {
    for (const WeightLayout layout : layouts) {
      for (const DType dtype : {float32, bfloat16, float16}) {
        const std::string what(name_of(format));
        const QuantizedLayer layer = layer_of(48, 80, layout, format, dtype);
        expect_same_as_numbers(
            layer, {{3, 5, 48}, {80}}, dtype,
            [&](const auto& in, const Tensor& weight) {
              return linear(in[0], weight, in[1], layout);
            },
            what + " linear");
        expect_same_as_numbers(
            layer, {{7, 48}, {48}, {80}}, dtype,
            [&](const auto& in, const Tensor& weight) {
              return bias_gelu_linear(in[0], in[1], weight, in[2], layout, false);
            },
            what + " bias_gelu_linear");
        expect_same_as_numbers(
            layer, {{7, 48}, {7, 48}}, dtype,
            [&](const auto& in, const Tensor& weight) {
              return swiglu_linear(in[0], in[1], weight, layout);
            },
            what + " swiglu_linear");
      }
    }
  }
}

// The matrix has five times as many elements as a tile. A product on a CPU may take two and a half
// times its matrix, and may sum in another order for another number of columns.
TEST(QuantizedLinear, TilesChangeNoSumAndBoundTheMemory) {
  constexpr std::int64_t in = 2048, out = ops::dequantized_tile / in * 5;
  for (const WeightLayout layout : layouts) {
    const QuantizedLayer layer = layer_of(in, out, layout, QuantizedFormat::nf4, float32);
    const Tensor x = input({2, in}, 1, float32);
    MemoryPool& pool = *MemoryPool::current();
    pool.reset_peak();
    const std::size_t before = pool.stats().in_use;
    const Tensor y = linear(x, layer.codes, {}, layout);
    const std::size_t peak = pool.stats().peak_in_use - before;
    EXPECT_LE(peak, static_cast<std::size_t>(4 * ops::dequantized_tile) * 5 / 2 + (1 << 20));
    const std::vector<double> got = y.to_vector();
    const std::vector<double> wanted = linear(x, layer.numbers, {}, layout).to_vector();
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 2e-4) << i;
  }
}

// A layer over codes beside one over the numbers that they stand for.
TEST(QuantizedLinear, AFrozenLayerUnderAnAdapterTrainsTheAdapter) {
  const auto adapted = [] {
    manual_seed(3);
    nn::Linear layer(64, 32);
    freeze(*layer);
    layer->add_lora({.rank = 4, .alpha = 8});
    // It is 0 at first, which would hide the gradient of the first factor.
    Tensor(layer->lora_b()->weight()).copy_from(cast(testing::values({32, 4}, 5), float32));
    return layer;
  };
  for (const QuantizedFormat format : all_formats) {
    const nn::Linear layer = adapted(), numbers = adapted();
    ASSERT_TRUE(layer->quantize_weight(format));
    EXPECT_EQ(layer->quantized(), format);
    EXPECT_EQ(layer->weight_shape(), (Shape{32, 64}));
    EXPECT_EQ(layer->stored_weight().dtype(), uint8);
    EXPECT_FALSE(layer->stored_weight().requires_grad());
    Tensor(numbers->stored_weight()).copy_from(dequantize(layer->stored_weight(), 32, 64, float32));
    std::vector<std::vector<double>> results[2];
    for (const nn::Linear& each : {layer, numbers}) {
      const Tensor x = input({5, 64}, 2, float32);
      const Tensor y = each(x);
      sum(square(y)).backward();
      for (const Tensor& result :
           {y, x.grad(), each->lora_a()->weight().grad(), each->lora_b()->weight().grad()})
        results[each->quantized() ? 0 : 1].push_back(result.to_vector());
    }
    EXPECT_EQ(results[0], results[1]) << name_of(format);
    EXPECT_THROW(layer->quantize_weight(format), std::logic_error);
    EXPECT_THROW(layer->round_weight(WeightRounding::q8_0), std::logic_error);
  }
}

TEST(QuantizedLinear, LayersThatCannotBeQuantisedStay) {
  manual_seed(1);
  nn::Linear odd(9, 5);
  EXPECT_FALSE(odd->quantize_weight(QuantizedFormat::nf4));
  EXPECT_EQ(odd->stored_weight().dtype(), float32);
  class Net : public nn::Module {
   public:
    Net() {
      trained_ = register_module("trained", nn::Linear(64, 64));
      frozen_ = register_module("frozen", nn::Linear(64, 64));
      head_ = register_module("lm_head", nn::Linear(64, 64));
      freeze(*frozen_);
      freeze(*head_);
    }

   private:
    nn::Linear trained_, frozen_, head_;
  };
  Net net;
  EXPECT_EQ(quantize_frozen(net, QuantizedFormat::nf4), (std::vector<std::string>{"frozen"}));
  nn::Linear alone(64, 64);
  const std::string refusal = testing::error_of(
      [&] { return quantize_frozen(*alone, QuantizedFormat::nf4); }, ErrorCode::configuration);
  EXPECT_NE(refusal.find("no linear layer is frozen"), std::string::npos) << refusal;
}

TEST(QuantizedLinear, BadOperandsAreRefused) {
  const QuantizedLayer layer =
      layer_of(48, 80, WeightLayout::out_in, QuantizedFormat::nf4, float32);
  EXPECT_THROW((void)linear(Tensor::zeros({2, 47}), layer.codes), std::logic_error);
  EXPECT_THROW((void)linear(Tensor::zeros({2, 48}, float64), layer.codes), std::logic_error);
  EXPECT_THROW((void)linear(Tensor::zeros({2, 48}), layer.codes, Tensor::zeros({79})),
               std::logic_error);
  EXPECT_THROW((void)dequantize(layer.codes, 80, 49, float32), std::logic_error);
  EXPECT_THROW((void)quantize(Tensor::zeros({3, 5}), QuantizedFormat::nf4), std::logic_error);
  Tensor bad = Tensor::zeros({8, 8});
  bad.data_as<float>()[5] = NAN;
  EXPECT_THROW((void)quantize(bad, QuantizedFormat::int8), Error);
}

}  // namespace
}  // namespace tessera
