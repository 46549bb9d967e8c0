// Layers over channels: names, starting values, the statistics of BatchNorm.
#include "engine/nn/convolution_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/random.h"
#include "engine/recompute.h"
#include "engine/tensor_ops.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using Values = std::vector<double>;

std::vector<std::string> names_with_buffers(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) names.push_back(parameter.name);
  for (const nn::NamedBuffer& buffer : module.named_buffers()) names.push_back(buffer.name);
  return names;
}

Values buffer_of(const nn::Module& module, const std::string& name) {
  for (const nn::NamedBuffer& buffer : module.named_buffers()) {
    if (buffer.name == name) return buffer.tensor.to_vector();
  }
  return {};
}

struct Layers : nn::Module {
  Layers() {
    line = register_module("line", nn::Conv1d(4, 6, 3, Convolution1dOptions{.groups = 2}));
    plane = register_module("plane", nn::Conv2d(3, 2, 4, Convolution2dOptions{.stride = 4}, false));
    groups = register_module("groups", nn::GroupNorm(2, 4));
    batch = register_module("batch", nn::BatchNorm(2));
  }
  nn::Conv1d line;
  nn::Conv2d plane;
  nn::GroupNorm groups;
  nn::BatchNorm batch;
};

TEST(ConvolutionLayers, HaveTorchsNamesShapesAndStartingValues) {
  manual_seed(1);
  const Layers layers;
  EXPECT_EQ(
      names_with_buffers(layers),
      (std::vector<std::string>{"line.weight", "line.bias", "plane.weight", "groups.weight",
                                "groups.bias", "batch.weight", "batch.bias", "batch.running_mean",
                                "batch.running_var", "batch.num_batches_tracked"}));
  const auto parameters = layers.named_parameters();
  EXPECT_EQ(parameters[0].tensor.shape(), (Shape{6, 2, 3}));
  EXPECT_EQ(parameters[2].tensor.shape(), (Shape{2, 3, 4, 4}));
  const Values plane = parameters[2].tensor.to_vector();
  const double bound = 1 / std::sqrt(48.0);
  EXPECT_LE(*std::max_element(plane.begin(), plane.end()), bound);
  EXPECT_GT(*std::max_element(plane.begin(), plane.end()), 0.8 * bound);
  EXPECT_GE(*std::min_element(plane.begin(), plane.end()), -bound);
  EXPECT_EQ(layers.plane(Tensor::zeros({2, 3, 8, 8})).shape(), (Shape{2, 2, 2, 2}));
  EXPECT_EQ(layers.line(Tensor::zeros({2, 4, 5})).shape(), (Shape{2, 6, 3}));
}

// Channel 0 has 1, 2, 3, 6 (mean 3, variance 3.5), channel 1 only 5s.
TEST(BatchNorm, NormalisesWithTheBatchAndKeepsRunningStatistics) {
  nn::BatchNorm layer(2);
  const Tensor x = Tensor::from({1.f, 2.f, 5.f, 5.f, 3.f, 6.f, 5.f, 5.f}, {2, 2, 2});
  const Values y = layer(x).to_vector();
  const double scale = 1 / std::sqrt(3.5 + 1e-5);
  const Values wanted{-2 * scale, -scale, 0, 0, 0, 3 * scale, 0, 0};
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], wanted[i], 1e-6) << i;
  const Values mean = buffer_of(*layer, "running_mean"), var = buffer_of(*layer, "running_var");
  EXPECT_NEAR(mean[0], 0.3, 1e-6);
  EXPECT_NEAR(mean[1], 0.5, 1e-6);
  EXPECT_NEAR(var[0], 0.9 + 0.1 * 3.5 * 4 / 3, 1e-6);
  EXPECT_NEAR(var[1], 0.9, 1e-6);
  EXPECT_EQ(buffer_of(*layer, "num_batches_tracked"), Values{1});
  layer->eval();
  const Values z = layer(x).to_vector();
  EXPECT_NEAR(z[5], (6 - mean[0]) / std::sqrt(var[0] + 1e-5), 1e-5);
  EXPECT_EQ(buffer_of(*layer, "num_batches_tracked"), Values{1});
}

TEST(BatchNorm, CountsARecomputedForwardOnce) {
  nn::BatchNorm layer(2);
  layer->set_recompute(RecomputeOptions{});
  Tensor x = Tensor::from({1.f, 2.f, 5.f, 4.f, 3.f, 6.f, 5.f, 5.f}, {4, 2});
  x.set_requires_grad(true);
  sum(square(layer(x)) * 0.5).backward();
  EXPECT_EQ(buffer_of(*layer, "num_batches_tracked"), Values{1});
  EXPECT_NEAR(buffer_of(*layer, "running_mean")[0], 0.1 * 3.5, 1e-6);
}

TEST(BatchNorm, StatisticsOf16BitsAreFp32) {
  nn::BatchNorm layer(1);
  std::vector<float> values(1000, 256.0f);
  values[0] = 258.0f;
  const Tensor x = cast(Tensor::from(values, {1000, 1}), bfloat16);
  EXPECT_EQ(layer(x).dtype(), bfloat16);
  EXPECT_NEAR(buffer_of(*layer, "running_mean")[0], 0.1 * 256.002, 1e-4);
}

TEST(BatchNorm, RefusesASingleValue) {
  nn::BatchNorm layer(2);
  const auto refused = [&](const Shape& shape) {
    const std::string text = testing::misuse_of([&] { (void)layer(Tensor::zeros(shape)); });
    return text.substr(0, text.find(" (in "));
  };
  EXPECT_EQ(refused({1, 2}),
            "BatchNorm: one value for each channel in x of shape [1, 2] has no variance");
  EXPECT_EQ(refused({3, 4}),
            "BatchNorm of 2 channels: x of shape [3, 4]; [samples, channels, ..] is needed");
}

}  // namespace
}  // namespace tessera
