// Layers over engine/ops.h.
#include "engine/nn/layers.h"

#include <cmath>

#include "kernels/base/error.h"

namespace tessera::nn {

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, const LinearOptions& options)
    : options_(options) {
  TESSERA_REQUIRE(in > 0 && out > 0, "Linear of {} inputs and {} outputs", in, out);
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  const bool by_torch = options.deviation == 0;
  const Shape shape = options.layout == WeightLayout::out_in ? Shape{out, in} : Shape{in, out};
  register_parameter("weight", make_parameter(shape, by_torch ? uniform(-bound, bound)
                                                              : normal(0, options.deviation)));
  if (options.bias) {
    register_parameter("bias",
                       make_parameter({out}, by_torch ? uniform(-bound, bound) : constant(0)));
  }
}

Tensor LinearImpl::forward(const Tensor& x) const {
  return linear(x, weight(), bias(), layout());
}

EmbeddingImpl::EmbeddingImpl(std::int64_t entries, std::int64_t dim, double deviation) {
  TESSERA_REQUIRE(entries > 0 && dim > 0, "Embedding of {} entries of size {}", entries, dim);
  register_parameter("weight", make_parameter({entries, dim}, normal(0, deviation)));
}

Tensor EmbeddingImpl::forward(const Tensor& ids) const {
  return embedding(ids, weight());
}

LayerNormImpl::LayerNormImpl(std::int64_t dim, double eps) : eps_(eps) {
  register_parameter("weight", make_parameter({dim}, constant(1)));
  register_parameter("bias", make_parameter({dim}, constant(0)));
}

Tensor LayerNormImpl::forward(const Tensor& x) const {
  return layer_norm(cast(x, parameter("weight").dtype()), parameter("weight"), parameter("bias"),
                    eps_);
}

std::pair<Tensor, Tensor> LayerNormImpl::forward(const Tensor& x, const Tensor& residual) const {
  return add_layer_norm(x, residual, parameter("weight"), parameter("bias"), eps_);
}

RmsNormImpl::RmsNormImpl(std::int64_t dim, double eps) : eps_(eps) {
  register_parameter("weight", make_parameter({dim}, constant(1)));
}

Tensor RmsNormImpl::forward(const Tensor& x) const {
  return rms_norm(cast(x, parameter("weight").dtype()), parameter("weight"), eps_);
}

std::pair<Tensor, Tensor> RmsNormImpl::forward(const Tensor& x, const Tensor& residual) const {
  return add_rms_norm(x, residual, parameter("weight"), eps_);
}

DropoutImpl::DropoutImpl(double p) : p_(p) {
  TESSERA_REQUIRE(p >= 0 && p < 1, "Dropout probability {} is not in [0, 1)", p);
}

Tensor DropoutImpl::forward(const Tensor& x) const {
  return dropout(x, probability());
}

}  // namespace tessera::nn
