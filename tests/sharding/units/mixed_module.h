// A model whose units have segments of every kind: trainable and frozen, fp32 and bf16.
#pragma once

#include <memory>

#include "sharding/sharding_testing.h"

namespace tessera::testing {

inline void freeze(nn::Module& module) {
  for (auto& parameter : module.named_parameters()) parameter.tensor.set_requires_grad(false);
}

// Trainable and frozen parameters of both dtypes, in one unit.
class FourSegmentsImpl : public nn::Module {
 public:
  explicit FourSegmentsImpl(bool all_frozen) {
    const auto make = [&](const char* name, DType dtype, bool frozen) {
      const nn::ParameterDTypeGuard guard(dtype);
      nn::Linear layer = register_module(name, nn::Linear(toy_width, toy_width));
      if (frozen) freeze(*layer);
      return layer;
    };
    frozen_wide_ = make("frozen_wide", float32, true);
    wide_ = make("wide", float32, all_frozen);
    frozen_narrow_ = make("frozen_narrow", bfloat16, true);
    narrow_ = make("narrow", bfloat16, all_frozen);
  }
  Tensor forward(const Tensor& x) const {
    const auto through = [](const nn::Linear& layer, const Tensor& in) {
      return cast(layer(cast(in, layer->weight().dtype())), float32);
    };
    return through(frozen_wide_, relu(through(narrow_, x))) +
           through(wide_, relu(through(frozen_narrow_, x)));
  }

 private:
  nn::Linear frozen_wide_, wide_, frozen_narrow_, narrow_;
};
TESSERA_MODULE(FourSegments);

class MixedAndFrozen : public nn::Module {
 public:
  explicit MixedAndFrozen(double = 0) {
    tokens_ = register_module("tokens", nn::Embedding(toy_vocabulary, toy_width, 0.3));
    mixed_ = register_module("mixed", FourSegments(false));
    fixed_ = register_module("fixed", FourSegments(true));
  }
  [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& targets) const {
    return cross_entropy(
        linear(cast(fixed_(mixed_(tokens_(ids))), tokens_->weight().dtype()), tokens_->weight()),
        targets);
  }

 private:
  nn::Embedding tokens_;
  FourSegments mixed_, fixed_;
};

}  // namespace tessera::testing
