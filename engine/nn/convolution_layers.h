// Convolutions and the norms over channels: [samples, channels, ..]. Parameters and buffers have
// torch's names.
#pragma once

#include <cstdint>

#include "engine/nn/module.h"
#include "engine/ops/products/convolution.h"

namespace tessera::nn {

// Weights and bias start as torch's: uniform in +-1/sqrt(channels / groups * kernel elements).
class Conv1dImpl : public Module {
 public:
  Conv1dImpl(std::int64_t channels, std::int64_t outputs, std::int64_t kernel,
             const Convolution1dOptions& options = {}, bool bias = true);
  Tensor forward(const Tensor& x) const;  // [samples, channels, length]

 private:
  Convolution1dOptions options_;
  bool bias_;
};
TESSERA_MODULE(Conv1d);

class Conv2dImpl : public Module {
 public:
  Conv2dImpl(std::int64_t channels, std::int64_t outputs, RowsAndColumns kernel,
             const Convolution2dOptions& options = {}, bool bias = true);
  Tensor forward(const Tensor& x) const;  // [samples, channels, rows, columns]

 private:
  Convolution2dOptions options_;
  bool bias_;
};
TESSERA_MODULE(Conv2d);

class GroupNormImpl : public Module {
 public:
  GroupNormImpl(std::int64_t groups, std::int64_t channels, double eps = 1e-5);
  Tensor forward(const Tensor& x) const;

 private:
  std::int64_t groups_;
  double eps_;
};
TESSERA_MODULE(GroupNorm);

// torch's BatchNorm1d and BatchNorm2d. In training it normalises with the mean and the variance of
// each channel over the samples and places of the batch, and moves the buffers `running_mean` and
// `running_var` by `momentum` towards them (the variance divided by n - 1); outside of training it
// uses the buffers. Statistics are fp32. A rank has the statistics of its own samples, as torch's
// layer under FSDP: so the result depends on how a batch is split into ranks and micro-batches, and
// a checkpoint has the buffers of rank 0. GroupNorm has neither property. In training the host
// reads the count of batches, so it waits for a GPU.
class BatchNormImpl : public Module {
 public:
  explicit BatchNormImpl(std::int64_t channels, double eps = 1e-5, double momentum = 0.1);
  Tensor forward(const Tensor& x);

 private:
  void count_batch();

  std::int64_t channels_;
  double eps_, momentum_;
};
TESSERA_MODULE(BatchNorm);

}  // namespace tessera::nn
