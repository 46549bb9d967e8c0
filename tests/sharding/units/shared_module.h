// A model of units that are shared, nested, tied and frozen.
#pragma once

#include <memory>

#include "engine/recompute.h"
#include "sharding/sharding_testing.h"

namespace tessera::testing {

// Units that are called twice, tied and frozen parameters, a unit inside a unit, and a user's
// function around two units.
class SharedPairImpl : public nn::Module {
 public:
  SharedPairImpl() {
    first_ = register_module("first", ToyBlock(0.1));
    second_ = register_module("second", nn::Linear(toy_width, toy_width));
  }
  Tensor forward(const Tensor& x) const { return x + tanh(second_(first_(x))); }

 private:
  ToyBlock first_;
  nn::Linear second_;
};
TESSERA_MODULE(SharedPair);

class SharedUnits : public nn::Module {
 public:
  explicit SharedUnits(bool again) : again_(again) {
    tokens_ = register_module("tokens", nn::Embedding(toy_vocabulary, toy_width, 0.3));
    twice_ = register_module("twice", ToyBlock(0.1));
    frozen_ = register_module("frozen", ToyBlock(0.1));
    for (auto& parameter : frozen_->named_parameters()) parameter.tensor.set_requires_grad(false);
    half_ = register_module("half", ToyBlock(0.0));
    half_->named_parameters()[2].tensor.set_requires_grad(false);
    pair_ = register_module("pair", SharedPair(std::make_shared<SharedPairImpl>()));
  }
  [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& targets) const {
    Tensor x = twice_(tokens_(ids));
    x = frozen_(x);
    // Calls of one unit inside and outside the function, and calls of another unit before and
    // after.
    const auto part = [this](const Tensor& in) { return half_(twice_(in)) * 0.5; };
    x = x + (again_ ? recompute(part, x) : part(x));
    x = half_(pair_(x));
    return cross_entropy(linear(x, tokens_->weight()), targets);
  }

 private:
  bool again_;
  nn::Embedding tokens_;
  ToyBlock twice_, frozen_, half_;
  SharedPair pair_;
};

}  // namespace tessera::testing
