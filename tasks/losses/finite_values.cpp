// By the largest and the smallest value, which are NaN if one is.
#include "tasks/losses/finite_values.h"

#include <cmath>

#include "engine/autograd.h"
#include "engine/tensor_ops.h"

namespace tessera::tasks {

bool all_finite(const Tensor& x) {
  if (x.elements() == 0) return true;
  const NoGradGuard no_grad;
  return std::isfinite(max(x).item()) && std::isfinite(min(x).item());
}

}  // namespace tessera::tasks
