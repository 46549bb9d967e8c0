// The activations of feed-forward layers and poolers under the names that transformers gives them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tensor.h"

namespace tessera::models {

enum class Activation : std::uint8_t { gelu, gelu_tanh, quick_gelu, relu, silu, tanh };

struct ActivationName {
  std::string_view name;
  Activation activation;
};
inline constexpr ActivationName names_of_activations[] = {
    {"gelu", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"quick_gelu", Activation::quick_gelu},
    {"relu", Activation::relu},
    {"silu", Activation::silu},
    {"swish", Activation::silu},
    {"tanh", Activation::tanh},
};

// All names, for a table of keys.
inline std::vector<std::string> activation_names() {
  std::vector<std::string> names;
  for (const ActivationName& row : names_of_activations) names.emplace_back(row.name);
  return names;
}

// One of those names: a std::logic_error otherwise.
Activation activation_of(std::string_view name);
// quick_gelu is x * sigmoid(1.702 x).
Tensor activate(const Tensor& x, Activation activation);
// True for those that bias_gelu_linear() computes.
inline bool is_gelu(Activation activation) {
  return activation == Activation::gelu || activation == Activation::gelu_tanh;
}

}  // namespace tessera::models
