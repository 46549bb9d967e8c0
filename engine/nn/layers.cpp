// Layers over engine/ops.h.
#include "engine/nn/layers.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "engine/device/memory_kind.h"
#include "engine/ops/products/quantized.h"
#include "engine/tensor_ops.h"

namespace tessera::nn {

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, const LinearOptions& options)
    : options_(options) {
  TESSERA_REQUIRE(in > 0 && out > 0, "Linear of {} inputs and {} outputs", in, out);
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  const bool by_torch = options.deviation == 0;
  weight_shape_ = options.layout == WeightLayout::out_in ? Shape{out, in} : Shape{in, out};
  register_parameter(
      "weight", make_parameter(weight_shape_,
                               by_torch ? uniform(-bound, bound) : normal(0, options.deviation)));
  if (options.bias) {
    register_parameter("bias",
                       make_parameter({out}, by_torch ? uniform(-bound, bound) : constant(0)));
  }
}

Tensor LinearImpl::weight() const {
  const Tensor& weight = stored_weight();
  if (rounding_ == WeightRounding::none) return weight;
  if (layout() == WeightLayout::out_in) return round_to_blocks(weight, rounding_);
  return transpose(round_to_blocks(transpose(weight, 0, 1), rounding_), 0, 1);
}

bool LinearImpl::round_weight(WeightRounding rounding) {
  TESSERA_REQUIRE(!quantized_, "this linear layer's weight is quantised already");
  const std::int64_t in = weight_shape_[layout() == WeightLayout::out_in ? 1 : 0];
  if (in % rounded_together != 0) return false;
  rounding_ = rounding;
  return true;
}

bool LinearImpl::quantize_weight(QuantizedFormat format) {
  TESSERA_REQUIRE(!quantized_ && rounding_ == WeightRounding::none,
                  "this linear layer's weight is rounded or quantised already");
  const std::int64_t rows = weight_shape_[0], columns = weight_shape_[1];
  if (!can_quantize(rows, columns)) return false;
  const Tensor old = stored_weight();
  Tensor codes;
  if (old.is_meta()) {
    const DeviceGuard where_the_weight_is(old.device());
    codes = make_buffer(quantized_weight_shape(format, rows, columns), constant(0), uint8);
  } else {
    codes = quantize(old, format);
  }
  codes.set_requires_grad(false);
  replace_own_parameter(old, codes);
  quantized_ = format;
  return true;
}

void LinearImpl::lay_in_first() {
  const Tensor old = stored_weight();
  TESSERA_REQUIRE(old.dtype() == float32 && old.device().type == DeviceType::cpu,
                  "lay_in_first: a weight of {} on {}", name_of(old.dtype()),
                  old.device().to_string());
  if (layout() == WeightLayout::in_out) return;
  const std::int64_t out = old.size(0), in = old.size(1);
  const MemoryScope kind(MemoryKind::parameters);
  Tensor laid = Tensor::empty({in, out}, float32, old.device());
  const auto* const from = old.data_as<float>();
  auto* const to = laid.data_as<float>();
  // The rows and columns of a tile are whole cache lines.
  constexpr std::int64_t tile = 16;
  parallel_for(0, in, tile, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; i += tile) {
      for (std::int64_t o = 0; o < out; o += tile) {
        const std::int64_t in_end = std::min(i + tile, last), out_end = std::min(o + tile, out);
        for (std::int64_t row = i; row < in_end; ++row) {
          for (std::int64_t column = o; column < out_end; ++column) {
            to[row * out + column] = from[column * in + row];
          }
        }
      }
    }
  });
  replace_own_parameter(old, laid);
  options_.layout = WeightLayout::in_out;
  weight_shape_ = laid.shape();
}

void lay_in_first(Module& module) {
  for (const auto& [name, part] : module.named_modules()) {
    if (auto* const layer = dynamic_cast<LinearImpl*>(part)) layer->lay_in_first();
  }
}

EmbeddingImpl::EmbeddingImpl(std::int64_t entries, std::int64_t dim, double deviation) {
  TESSERA_REQUIRE(entries > 0 && dim > 0, "Embedding of {} entries of size {}", entries, dim);
  register_parameter("weight", make_parameter({entries, dim}, normal(0, deviation)));
}

Tensor EmbeddingImpl::forward(const Tensor& ids) const {
  // The rounding of rows that are read is that of the whole table.
  return round_to_blocks(embedding(ids, stored_weight()), rounding_);
}

Tensor EmbeddingImpl::weight() const {
  return round_to_blocks(stored_weight(), rounding_);
}

bool EmbeddingImpl::round_weight(WeightRounding rounding) {
  if (stored_weight().size(1) % rounded_together != 0) return false;
  rounding_ = rounding;
  return true;
}

LayerNormImpl::LayerNormImpl(std::int64_t dim, double eps, bool bias) : eps_(eps), has_bias_(bias) {
  register_parameter("weight", make_parameter({dim}, constant(1)));
  if (bias) register_parameter("bias", make_parameter({dim}, constant(0)));
}

Tensor LayerNormImpl::forward(const Tensor& x) const {
  return layer_norm(cast(x, parameter("weight").dtype()), parameter("weight"), bias(), eps_);
}

std::pair<Tensor, Tensor> LayerNormImpl::forward(const Tensor& x, const Tensor& residual) const {
  return add_layer_norm(x, residual, parameter("weight"), bias(), eps_);
}

RmsNormImpl::RmsNormImpl(std::int64_t dim, double eps, double offset) : eps_(eps), offset_(offset) {
  register_parameter("weight", make_parameter({dim}, constant(1 - offset)));
}

// The sum is computed in fp32 at least, and rounded once.
Tensor RmsNormImpl::factors() const {
  const Tensor& weight = parameter("weight");
  if (offset_ == 0) return weight;
  if (weight.dtype() == float64) return weight + offset_;
  return cast(cast(weight, float32) + offset_, weight.dtype());
}

Tensor RmsNormImpl::forward(const Tensor& x) const {
  return rms_norm(cast(x, parameter("weight").dtype()), factors(), eps_);
}

std::pair<Tensor, Tensor> RmsNormImpl::forward(const Tensor& x, const Tensor& residual) const {
  return add_rms_norm(x, residual, factors(), eps_);
}

DropoutImpl::DropoutImpl(double p) : p_(p) {
  TESSERA_REQUIRE(p >= 0 && p < 1, "Dropout probability {} is not in [0, 1)", p);
}

Tensor DropoutImpl::forward(const Tensor& x) const {
  return dropout(x, probability());
}

}  // namespace tessera::nn
