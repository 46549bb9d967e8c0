// Layers over engine/ops/products/convolution.h and the norms over channels.
#include "engine/nn/convolution_layers.h"

#include <cmath>
#include <vector>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/tensor_ops.h"

namespace tessera::nn {
namespace {

struct ConvolutionParameters {
  Tensor weight, bias;  // the bias may be undefined
};

ConvolutionParameters make_parameters(const char* layer, const Shape& weight, bool bias,
                                      std::int64_t groups) {
  TESSERA_REQUIRE(weight.elements() > 0 && groups > 0 && weight[0] % groups == 0,
                  "{}: a weight of shape {} and {} groups; sizes must be positive, and the groups "
                  "divide channels and outputs",
                  layer, weight.to_string(), groups);
  const std::int64_t inputs = weight.elements() / weight[0];  // of one output
  const double bound = 1.0 / std::sqrt(static_cast<double>(inputs));
  ConvolutionParameters made;
  made.weight = make_parameter(weight, uniform(-bound, bound));
  if (bias) made.bias = make_parameter({weight[0]}, uniform(-bound, bound));
  return made;
}

std::int64_t channels_of_group(const char* layer, std::int64_t channels, std::int64_t groups) {
  TESSERA_REQUIRE(groups > 0 && channels % groups == 0, "{}: {} groups do not divide {} channels",
                  layer, groups, channels);
  return channels / groups;
}

// [channels] with a size of 1 for each dimension of x after its channels.
Tensor beside_channels(const Tensor& values, const Tensor& x) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dimensions() - 1), 1);
  sizes[0] = values.elements();
  return reshape(values, Shape(sizes));
}

}  // namespace

Conv1dImpl::Conv1dImpl(std::int64_t channels, std::int64_t outputs, std::int64_t kernel,
                       const Convolution1dOptions& options, bool bias)
    : options_(options), bias_(bias) {
  const std::int64_t inputs = channels_of_group("Conv1d", channels, options.groups);
  const auto made = make_parameters("Conv1d", {outputs, inputs, kernel}, bias, options.groups);
  register_parameter("weight", made.weight);
  if (bias) register_parameter("bias", made.bias);
}

Tensor Conv1dImpl::forward(const Tensor& x) const {
  return conv1d(x, parameter("weight"), bias_ ? parameter("bias") : Tensor{}, options_);
}

Conv2dImpl::Conv2dImpl(std::int64_t channels, std::int64_t outputs, RowsAndColumns kernel,
                       const Convolution2dOptions& options, bool bias)
    : options_(options), bias_(bias) {
  const std::int64_t inputs = channels_of_group("Conv2d", channels, options.groups);
  const auto made = make_parameters("Conv2d", {outputs, inputs, kernel.rows, kernel.columns}, bias,
                                    options.groups);
  register_parameter("weight", made.weight);
  if (bias) register_parameter("bias", made.bias);
}

Tensor Conv2dImpl::forward(const Tensor& x) const {
  return conv2d(x, parameter("weight"), bias_ ? parameter("bias") : Tensor{}, options_);
}

GroupNormImpl::GroupNormImpl(std::int64_t groups, std::int64_t channels, double eps)
    : groups_(groups), eps_(eps) {
  TESSERA_REQUIRE(channels > 0, "GroupNorm of {} channels", channels);
  (void)channels_of_group("GroupNorm", channels, groups);
  register_parameter("weight", make_parameter({channels}, constant(1)));
  register_parameter("bias", make_parameter({channels}, constant(0)));
}

Tensor GroupNormImpl::forward(const Tensor& x) const {
  return group_norm(x, groups_, parameter("weight"), parameter("bias"), eps_);
}

BatchNormImpl::BatchNormImpl(std::int64_t channels, double eps, double momentum)
    : channels_(channels), eps_(eps), momentum_(momentum) {
  TESSERA_REQUIRE(channels > 0, "BatchNorm of {} channels", channels);
  register_parameter("weight", make_parameter({channels}, constant(1)));
  register_parameter("bias", make_parameter({channels}, constant(0)));
  register_buffer("running_mean", make_buffer({channels}, constant(0)));
  register_buffer("running_var", make_buffer({channels}, constant(1)));
  register_buffer("num_batches_tracked", make_buffer({}, constant(0), int64));
}

// There is no arithmetic of integers on a device, so the host adds.
void BatchNormImpl::count_batch() {
  const Tensor& counted = buffer("num_batches_tracked");
  if (counted.is_meta()) return;
  const auto next = static_cast<std::int64_t>(counted.item()) + 1;
  set_buffer("num_batches_tracked", Tensor::from({next}, {}).to(counted.device()));
}

Tensor BatchNormImpl::forward(const Tensor& x) {
  TESSERA_REQUIRE(x.dimensions() >= 2 && x.size(1) == channels_,
                  "BatchNorm of {} channels: x of shape {}; [samples, channels, ..] is needed",
                  channels_, x.shape().to_string());
  const Tensor wide = cast(x, x.dtype() == float64 ? float64 : float32);
  Tensor centre, spread;
  if (is_training()) {
    const std::int64_t n = x.elements() / channels_;
    TESSERA_REQUIRE(n > 1, "BatchNorm: one value for each channel in x of shape {} has no variance",
                    x.shape().to_string());
    std::vector<int> others{0};
    for (int i = 2; i < x.dimensions(); ++i) others.push_back(i);
    centre = mean(wide, others);
    spread = variance(wide, others, 0);
    const NoGradGuard no_grad;
    const double unbiased = static_cast<double>(n) / static_cast<double>(n - 1);
    set_buffer("running_mean",
               buffer("running_mean") * (1 - momentum_) + cast(centre, float32) * momentum_);
    set_buffer("running_var", buffer("running_var") * (1 - momentum_) +
                                  cast(spread, float32) * (momentum_ * unbiased));
    count_batch();
  } else {
    centre = cast(buffer("running_mean"), wide.dtype());
    spread = cast(buffer("running_var"), wide.dtype());
  }
  const Tensor scale = rsqrt(spread + eps_) * cast(parameter("weight"), wide.dtype());
  const Tensor shift = cast(parameter("bias"), wide.dtype());
  const Tensor y = (wide - beside_channels(centre, x)) * beside_channels(scale, x);
  return cast(y + beside_channels(shift, x), x.dtype());
}

}  // namespace tessera::nn
