// The forward of a linear layer with an adapter.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/memory_kind.h"
#include "engine/nn/adapted_norms.h"
#include "engine/nn/layers.h"
#include "engine/nn/lora.h"
#include "engine/tensor_ops.h"

namespace tessera::nn {
namespace {

// Norms are not less, in any dtype with the exponents of fp32: a row of zeros is not divided by 0.
double least_norm(DType dtype) {
  return dtype == float16 ? 0x1p-14 : 0x1p-126;
}

}  // namespace

LoraFactorImpl::LoraFactorImpl(std::int64_t in, std::int64_t out, Initializer initializer) {
  register_parameter("weight", make_parameter({out, in}, initializer));
}

void LinearImpl::add_lora(const LoraOptions& options) {
  TESSERA_REQUIRE(!has_lora(), "this linear layer already has its one adapter");
  TESSERA_REQUIRE(options.rank > 0 && options.rank <= max_lora_rank,
                  "an adapter of rank {}; from 1 to {} is possible", options.rank, max_lora_rank);
  TESSERA_REQUIRE(options.can_scale(), "an adapter's alpha of {} makes a factor of {}",
                  options.alpha, options.scaling());
  TESSERA_REQUIRE(options.dropout >= 0 && options.dropout < 1,
                  "the adapter's dropout {} is not in [0, 1)", options.dropout);
  const bool out_first = layout() == WeightLayout::out_in;
  const Tensor& adapted = stored_weight();
  const std::int64_t in = weight_shape_[out_first ? 1 : 0];
  const std::int64_t out = weight_shape_[out_first ? 0 : 1];
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  const DeviceGuard where_the_weight_is(adapted.device());
  lora_a_ = register_module("lora_A", LoraFactor(in, options.rank, uniform(-bound, bound)));
  lora_b_ = register_module("lora_B", LoraFactor(options.rank, out, constant(0)));
  lora_scaling_ = options.scaling();
  lora_dropout_ = options.dropout;
  if (!options.dora) return;
  // A magnitude that nothing has set must not go unnoticed.
  register_parameter("lora_magnitude_vector",
                     make_parameter({out}, constant(std::numeric_limits<double>::quiet_NaN())));
  has_dora_ = true;
  if (!stored_weight().is_meta()) begin_magnitude();
}

Tensor LinearImpl::forward(const Tensor& x) const {
  if (!has_lora() || WithoutLora::is_on()) return linear(x, weight(), bias(), layout());
  return forward_dropped(x, dropout(x, lora_dropout()));
}

Tensor LinearImpl::forward_dropped(const Tensor& x, const Tensor& dropped) const {
  if (!scales_product()) return add_lora_product(linear(x, weight(), bias(), layout()), dropped);
  const Tensor y = add_lora_product(linear(x, weight(), {}, layout()), dropped);
  return options_.bias ? y + cast(bias(), y.dtype()) : y;
}

Tensor LinearImpl::lora_product(const Tensor& dropped) const {
  // Multiplies by the factor where the tensor is smallest.
  return lora_b_(lora_a_(dropped) * lora_scaling_);
}

Tensor LinearImpl::add_lora_product(const Tensor& y, const Tensor& dropped) const {
  if (!has_lora() || WithoutLora::is_on()) return y;
  const Tensor product = cast(lora_product(dropped), y.dtype());
  if (!has_dora_) return y + product;
  const Tensor factor = lora_factor(y.dtype());
  if (lora_dropout() == 0) return (y + product) * factor;
  // As in PEFT, what DoRA changes of the layer is computed from dropped inputs, the layer itself
  // from whole ones.
  const Tensor of_dropped = linear(dropped, weight(), {}, layout());
  return y + ((of_dropped + product) * factor - of_dropped);
}

Tensor LinearImpl::with_lora(const Tensor& y, const Tensor& x) const {
  if (!has_lora() || WithoutLora::is_on()) return y;
  return add_lora_product(y, dropout(x, lora_dropout()));
}

bool LinearImpl::scales_product() const {
  return has_dora_ && !WithoutLora::is_on();
}

Tensor LinearImpl::scale_and_add_bias(const Tensor& sum) const {
  const Tensor y = sum * lora_factor(sum.dtype());
  return options_.bias ? y + cast(bias(), y.dtype()) : y;
}

// The norms are rounded as the magnitude is: at first the factor is 1 in every dtype.
Tensor LinearImpl::lora_factor(DType dtype) const {
  const Tensor& magnitude = lora_magnitude();
  const Tensor norms =
      cast(kept_norms_.defined() ? kept_norms_ : adapted_norms(), magnitude.dtype());
  return cast(magnitude / clamp(norms, least_norm(norms.dtype())), dtype);
}

Tensor LinearImpl::adapted_norms() const {
  TESSERA_REQUIRE(has_lora(), "adapted_norms() of a layer without an adapter");
  return nn::adapted_norms({weight(), weight_shape_, layout()}, lora_a_->weight(),
                           lora_b_->weight(), lora_scaling_);
}

void LinearImpl::begin_magnitude() {
  TESSERA_REQUIRE(has_dora_, "begin_magnitude() of a layer whose adapter has no magnitude");
  const NoGradGuard no_grad;
  Tensor magnitude = lora_magnitude();
  magnitude.copy_from(cast(adapted_norms(), magnitude.dtype()));
}

void LinearImpl::keep_adapted_norms() {
  const MemoryScope kind(MemoryKind::parameters);
  if (has_dora_) kept_norms_ = adapted_norms();
}

void keep_adapted_norms(Module& module) {
  for (const auto& [name, part] : module.named_modules()) {
    if (auto* const layer = dynamic_cast<LinearImpl*>(part)) layer->keep_adapted_norms();
  }
}

}  // namespace tessera::nn
