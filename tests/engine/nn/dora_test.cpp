// DoRA on linear layers: magnitudes and norms, outputs against plain loops, and gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/nn/adapted_norms.h"
#include "engine/nn/lora.h"
#include "engine/ops/products/quantized.h"
#include "engine/random.h"
#include "engine/tensor_ops.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;

constexpr WeightLayout both_layouts[] = {WeightLayout::out_in, WeightLayout::in_out};

void draw(Tensor tensor, std::uint64_t stream, double deviation = 0.5) {
  Initializer initializer = nn::normal(0, deviation);
  initializer.seed = 23;
  initializer.stream = stream;
  Tensor values = Tensor::empty(tensor.shape(), float32, Device::cpu());
  initializer.fill(values.data(), float32, 0, values.elements());
  tensor.copy_from(cast(values, tensor.dtype()));
}

// Both factors are random, and magnitudes are not the norms.
void draw_adapter(const nn::Linear& layer) {
  draw(layer->lora_a()->weight(), 1);
  draw(layer->lora_b()->weight(), 2);
  Tensor magnitude = layer->lora_magnitude();
  Tensor drawn = Tensor::empty(magnitude.shape(), magnitude.dtype());
  draw(drawn, 3, 0.3);
  magnitude.copy_from((magnitude + drawn).detach());
}

// W + scaling * B A as [out][in].
std::vector<Numbers> adapted_rows(const Numbers& weight, const nn::LinearImpl& layer) {
  const Numbers a = layer.lora_a()->weight().to_vector();
  const Numbers b = layer.lora_b()->weight().to_vector();
  const auto rank = static_cast<std::size_t>(layer.lora_a()->weight().size(0));
  const auto in = static_cast<std::size_t>(layer.lora_a()->weight().size(1));
  const auto out = static_cast<std::size_t>(layer.lora_b()->weight().size(0));
  const bool out_first = layer.layout() == WeightLayout::out_in;
  std::vector<Numbers> rows(out, Numbers(in));
  for (std::size_t o = 0; o < out; ++o) {
    for (std::size_t i = 0; i < in; ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < rank; ++k) sum += b[o * rank + k] * a[k * in + i];
      rows[o][i] = weight[out_first ? o * in + i : i * out + o] + layer.lora_scaling() * sum;
    }
  }
  return rows;
}

Numbers norms_of(const std::vector<Numbers>& rows) {
  Numbers norms;
  for (const Numbers& row : rows) {
    double sum = 0;
    for (const double value : row) sum += value * value;
    norms.push_back(std::sqrt(sum));
  }
  return norms;
}

void expect_near(const Numbers& got, const Numbers& wanted, double relative) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], wanted[i], relative * (1 + std::fabs(wanted[i]))) << i;
  }
}

TEST(Dora, BeginsWithTheNormsOfTheRowsAndChangesNoBit) {
  for (const WeightLayout layout : both_layouts) {
    for (const DType dtype : {float32, float64, bfloat16, float16}) {
      manual_seed(5);
      const nn::ParameterDTypeGuard guard(dtype);
      const nn::Linear layer(50, 40, nn::LinearOptions{.bias = false, .layout = layout});
      const Tensor x = Tensor::full({2, 50}, 0.5);
      const Numbers before = layer(x).to_vector();
      layer->add_lora({.rank = 4, .alpha = 8, .dora = true});
      ASSERT_TRUE(layer->has_dora());
      EXPECT_EQ(layer->lora_magnitude().shape(), (Shape{40}));
      EXPECT_EQ(layer->lora_magnitude().dtype(), dtype);
      EXPECT_TRUE(layer->lora_magnitude().requires_grad());
      const Numbers norms = norms_of(adapted_rows(layer->stored_weight().to_vector(), *layer));
      expect_near(layer->lora_magnitude().to_vector(), norms, size_of(dtype) == 2 ? 4e-3 : 1e-6);
      EXPECT_EQ(layer(x).to_vector(), before);
    }
  }
}

// y = m / |W + s B A| * (W + s B A) x + bias.
TEST(Dora, ScalesTheAdaptedRowsToTheMagnitude) {
  for (const WeightLayout layout : both_layouts) {
    for (const bool bias : {false, true}) {
      manual_seed(5);
      const nn::Linear layer(7, 5, nn::LinearOptions{.bias = bias, .layout = layout});
      const Numbers weight = layer->stored_weight().to_vector();
      layer->add_lora({.rank = 3, .alpha = 6, .dora = true});
      draw_adapter(layer);
      const std::vector<Numbers> rows = adapted_rows(weight, *layer);
      const Numbers norms = norms_of(rows);
      expect_near(layer->adapted_norms().to_vector(), norms, 1e-6);
      Tensor x = Tensor::empty({4, 7}, float32);
      draw(x, 9, 1.0);
      const Numbers inputs = x.to_vector(), magnitude = layer->lora_magnitude().to_vector();
      const Numbers added = bias ? layer->bias().to_vector() : Numbers(5, 0);
      Numbers wanted;
      for (std::size_t row = 0; row < 4; ++row) {
        for (std::size_t o = 0; o < 5; ++o) {
          double sum = 0;
          for (std::size_t i = 0; i < 7; ++i) sum += rows[o][i] * inputs[row * 7 + i];
          wanted.push_back(magnitude[o] / norms[o] * sum + added[o]);
        }
      }
      expect_near(layer(x).to_vector(), wanted, 2e-6);
      layer->keep_adapted_norms();
      expect_near(layer(x).to_vector(), wanted, 2e-6);
    }
  }
}

// As in PEFT: W x is of whole inputs, and what DoRA changes of it is of dropped ones.
TEST(Dora, DropsTheInputsOfWhatItChanges) {
  manual_seed(5);
  const nn::Linear layer(16, 6);
  layer->add_lora({.rank = 2, .alpha = 4, .dropout = 0.5, .dora = true});
  draw_adapter(layer);
  Tensor x = Tensor::empty({3, 16}, float32);
  draw(x, 9, 1.0);
  begin_batch({1, 0, 3});
  const Tensor dropped = dropout(x, 0.5);
  begin_batch({1, 0, 3});
  const Tensor y = layer(x);
  const Tensor factor = layer->lora_magnitude() / layer->adapted_norms();
  const Tensor low = linear(dropped, layer->lora_a()->weight()) * layer->lora_scaling();
  const Tensor wanted = linear(x, layer->weight(), layer->bias()) +
                        linear(dropped, layer->weight()) * (factor - 1.0) +
                        linear(low, layer->lora_b()->weight()) * factor;
  expect_near(y.to_vector(), wanted.to_vector(), 2e-6);
  layer->eval();
  EXPECT_NE(layer(x).to_vector(), y.to_vector());
}

// The norms are constants for gradients, so differences are those of a layer that keeps them.
TEST(Dora, GradientsAgreeWithDifferencesAtConstantNorms) {
  for (const WeightLayout layout : both_layouts) {
    for (const double rate : {0.0, 0.3}) {
      manual_seed(5);
      const nn::ParameterDTypeGuard fp64(float64);
      const nn::Linear layer(6, 4, nn::LinearOptions{.layout = layout});
      freeze(*layer);
      layer->add_lora({.rank = 2, .alpha = 4, .dropout = rate, .dora = true});
      draw_adapter(layer);
      Tensor x = Tensor::empty({3, 6}, float64);
      draw(x, 9, 1.0);
      x.set_requires_grad(true);
      const auto loss = [&] {
        begin_batch({1, 0, 3});
        return mean(square(layer(x)));
      };
      const std::vector<Tensor> leaves{x, layer->lora_a()->weight(), layer->lora_b()->weight(),
                                       layer->lora_magnitude()};
      loss().backward();
      std::vector<Numbers> gradients;
      for (Tensor leaf : leaves) {
        gradients.push_back(leaf.grad().to_vector());
        leaf.zero_grad();
      }
      layer->keep_adapted_norms();
      testing::check_gradients(loss, leaves, {.step = 1e-5, .tolerance = 5e-8});
      for (Tensor leaf : leaves) leaf.zero_grad();
      loss().backward();
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_EQ(leaves[i].grad().to_vector(), gradients[i]) << i;
      }
      EXPECT_FALSE(layer->stored_weight().grad().defined());
    }
  }
}

// A matrix of several tiles, of which the last is smaller.
TEST(Dora, NormsOfALargeMatrixAreThoseOfItsRows) {
  constexpr std::int64_t in = 1024, out = ops::dequantized_tile / in + 70;
  for (const WeightLayout layout : both_layouts) {
    manual_seed(5);
    const bool out_first = layout == WeightLayout::out_in;
    const nn::Linear layer(in, out, nn::LinearOptions{.layout = layout, .deviation = 0.02});
    layer->add_lora({.rank = 1, .alpha = 2, .dora = true});
    draw(layer->lora_a()->weight(), 1, 0.02);
    draw(layer->lora_b()->weight(), 2, 0.5);
    expect_near(layer->adapted_norms().to_vector(),
                norms_of(adapted_rows(layer->stored_weight().to_vector(), *layer)), 2e-6);
    EXPECT_EQ(layer->weight_shape(), (out_first ? Shape{out, in} : Shape{in, out}));
  }
}

TEST(Dora, NormsOfCodesAreThoseOfTheirNumbers) {
  for (const WeightLayout layout : both_layouts) {
    for (const QuantizedFormat format : {QuantizedFormat::nf4, QuantizedFormat::int8}) {
      manual_seed(5);
      const nn::Linear layer(128, 192, nn::LinearOptions{.layout = layout});
      freeze(*layer);
      ASSERT_TRUE(layer->quantize_weight(format));
      layer->add_lora({.rank = 2, .alpha = 4, .dora = true});
      const Shape& shape = layer->weight_shape();
      const Tensor numbers = dequantize(layer->stored_weight(), shape[0], shape[1], float32);
      expect_near(layer->lora_magnitude().to_vector(),
                  norms_of(adapted_rows(numbers.to_vector(), *layer)), 1e-6);
      draw_adapter(layer);
      expect_near(layer->adapted_norms().to_vector(),
                  norms_of(adapted_rows(numbers.to_vector(), *layer)), 1e-6);
      // Rows in the middle of the matrix.
      const std::int64_t count = std::min<std::int64_t>(40, shape[0] - 64);
      const Tensor part =
          dequantize_rows(layer->stored_weight(), shape[0], shape[1], float32, 64, count);
      EXPECT_EQ(part.to_vector(), narrow(numbers, 0, 64, count).to_vector());
    }
  }
}

// A head whose vocabulary is padded has such rows.
TEST(Dora, ARowOfZerosStaysFinite) {
  for (const DType dtype : {float32, bfloat16, float16}) {
    manual_seed(5);
    const nn::ParameterDTypeGuard guard(dtype);
    const nn::Linear layer(8, 4, nn::LinearOptions{.bias = false});
    Tensor weight = layer->stored_weight();
    weight.copy_from(Tensor::zeros(weight.shape(), dtype));
    freeze(*layer);
    layer->add_lora({.rank = 2, .dora = true});
    const Tensor y = layer(Tensor::full({1, 8}, 1.0));
    EXPECT_EQ(y.to_vector(), Numbers(4, 0));
    mean(square(y)).backward();
    for (const double value : layer->lora_magnitude().grad().to_vector()) EXPECT_EQ(value, 0);
  }
}

TEST(Dora, WithoutLoraIsTheFrozenLayer) {
  manual_seed(5);
  const nn::Linear layer(8, 4);
  const Tensor x = Tensor::full({1, 8}, 1.0);
  const Numbers before = layer(x).to_vector();
  layer->add_lora({.rank = 2, .dora = true});
  draw_adapter(layer);
  EXPECT_NE(layer(x).to_vector(), before);
  const NoGradGuard no_grad;
  const WithoutLora alone;
  EXPECT_FALSE(layer->scales_product());
  EXPECT_EQ(layer(x).to_vector(), before);
}

TEST(Dora, TheMagnitudeFollowsOtherWeightsOnceItIsAsked) {
  manual_seed(5);
  const nn::Linear layer(8, 4);
  layer->add_lora({.rank = 2, .dora = true});
  const Numbers before = layer->lora_magnitude().to_vector();
  draw(layer->stored_weight(), 4, 2.0);
  EXPECT_EQ(layer->lora_magnitude().to_vector(), before);
  layer->begin_magnitude();
  expect_near(layer->lora_magnitude().to_vector(),
              norms_of(adapted_rows(layer->stored_weight().to_vector(), *layer)), 1e-6);
  const nn::Linear plain(8, 4);
  plain->add_lora({.rank = 2});
  EXPECT_FALSE(plain->has_dora());
  EXPECT_THROW(plain->begin_magnitude(), std::logic_error);
  const DeviceGuard deferred(Device::meta());
  const nn::Linear later(8, 4);
  later->add_lora({.rank = 2, .dora = true});
  float value = 0;
  later->lora_magnitude().impl()->initializer->fill(&value, float32, 0, 1);
  EXPECT_TRUE(std::isnan(value));
}

TEST(Dora, ItsParametersAreTheAdapters) {
  EXPECT_TRUE(is_lora_parameter("h.0.lora_magnitude_vector"));
  EXPECT_TRUE(is_lora_magnitude("lora_magnitude_vector"));
  EXPECT_FALSE(is_lora_magnitude("h.0.lora_A.weight"));
  EXPECT_FALSE(is_lora_parameter("h.0.my_lora_magnitude_vector"));
  manual_seed(5);
  const nn::Linear layer(8, 4);
  freeze(*layer);
  layer->add_lora({.rank = 2, .dora = true});
  std::vector<std::string> trained;
  for (const nn::NamedParameter& parameter : layer->named_parameters()) {
    EXPECT_EQ(parameter.tensor.requires_grad(), is_lora_parameter(parameter.name));
    if (parameter.tensor.requires_grad()) trained.push_back(parameter.name);
  }
  EXPECT_EQ(trained,
            (std::vector<std::string>{"lora_magnitude_vector", "lora_A.weight", "lora_B.weight"}));
}

}  // namespace
}  // namespace tessera
