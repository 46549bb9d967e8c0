// Activations as ops.
#include "models/vit/activation.h"

#include "base/error.h"
#include "engine/ops.h"

namespace tessera::models {
Activation activation_of(std::string_view name) {
  for (const ActivationName& row : names_of_activations) {
    if (row.name == name) return row.activation;
  }
  misuse("there is no activation {}", name);
}

Tensor activate(const Tensor& x, Activation activation) {
  constexpr double steepness = 1.702;
  switch (activation) {
    case Activation::gelu:
      return gelu(x, true);
    case Activation::gelu_tanh:
      return gelu(x, false);
    case Activation::quick_gelu:
      return silu(x * steepness) * (1 / steepness);  // keeps one tensor for backward
    case Activation::relu:
      return relu(x);
    case Activation::silu:
      return silu(x);
    case Activation::tanh:
      return tanh(x);
  }
  misuse("there is no activation {}", static_cast<int>(activation));
}

}  // namespace tessera::models
