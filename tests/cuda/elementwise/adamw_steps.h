// The settings and gradients of the tests of AdamW's kernels.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "cuda/kernel_testing.h"

namespace tessera::testing {

template <class Step>
void set_common(Step& a, int step) {
  a.lr = 3e-3;
  a.beta1 = 0.9;
  a.beta2 = 0.95;
  a.eps = 1e-8;
  a.weight_decay = 0.1;
  a.correction1 = 1 - std::pow(a.beta1, step);
  a.correction2 = 1 - std::pow(a.beta2, step);
  a.grad_scale = 0.73f;
}

// Gradients of many magnitudes, some of them 0.
inline std::vector<double> gradients(std::size_t n) {
  std::vector<double> values = random_values(n, float32, 2);
  for (std::size_t i = 0; i < n; ++i) values[i] *= i % 5 == 0 ? 0 : std::pow(10.0, -1.0 * (i % 4));
  return values;
}

}  // namespace tessera::testing
