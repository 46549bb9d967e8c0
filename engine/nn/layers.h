// The layers that transformers and small networks are made of. Parameter names are torch's.
#pragma once

#include <cstdint>

#include "engine/nn/module.h"
#include "engine/ops.h"

namespace tessera::nn {

struct LinearOptions {
  bool bias = true;
  WeightLayout layout = WeightLayout::out_in;
  // Undefined deviation (0): torch.nn.Linear's uniform in +-1/sqrt(in); else normal weights and
  // zero bias.
  double deviation = 0;
};

class LinearImpl : public Module {
 public:
  LinearImpl(std::int64_t in, std::int64_t out, const LinearOptions& options = {});
  Tensor forward(const Tensor& x) const;  // [..., in] -> [..., out]
  [[nodiscard]] const Tensor& weight() const { return parameter("weight"); }
  [[nodiscard]] Tensor bias() const { return options_.bias ? parameter("bias") : Tensor{}; }
  [[nodiscard]] WeightLayout layout() const { return options_.layout; }

 private:
  LinearOptions options_;
};
TESSERA_MODULE(Linear);

class EmbeddingImpl : public Module {
 public:
  EmbeddingImpl(std::int64_t entries, std::int64_t dim, double deviation = 1.0);
  Tensor forward(const Tensor& ids) const;  // [...] -> [..., dim]
  [[nodiscard]] const Tensor& weight() const { return parameter("weight"); }
};
TESSERA_MODULE(Embedding);

class LayerNormImpl : public Module {
 public:
  explicit LayerNormImpl(std::int64_t dim, double eps = 1e-5);
  Tensor forward(const Tensor& x) const;
  // (x + residual, normalised sum)
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& residual) const;

 private:
  double eps_;
};
TESSERA_MODULE(LayerNorm);

class RmsNormImpl : public Module {
 public:
  explicit RmsNormImpl(std::int64_t dim, double eps = 1e-6);
  Tensor forward(const Tensor& x) const;
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& residual) const;

 private:
  double eps_;
};
TESSERA_MODULE(RmsNorm);

class DropoutImpl : public Module {
 public:
  explicit DropoutImpl(double p);
  Tensor forward(const Tensor& x) const;
  // What acts now: p in training mode, else 0.
  [[nodiscard]] double probability() const { return is_training() ? p_ : 0.0; }

 private:
  double p_;
};
TESSERA_MODULE(Dropout);

}  // namespace tessera::nn
