// Optimizer steps over flat segments: one pass over memory, element-wise, so a segment may be split
// anywhere.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// The elements to which weight decay applies: [edges[0], edges[1]), [edges[2], edges[3]) and so on;
// an odd last edge extends to the end. Ascending, in host memory, read before the call returns.
// Without edges: all elements.
struct DecayRanges {
  const std::int64_t* edges = nullptr;
  int count = 0;
};

// AdamW (Loshchilov & Hutter 2019) as torch.optim.AdamW computes it:
//   p -= lr*weight_decay*p; m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g;
//   p -= lr/correction1 * m / (sqrt(v)/sqrt(correction2) + eps), correction_i = 1 - beta_i^step.
// g = grad * grad_scale. fp32 (or fp64) param, m, v; grad of grad_dtype. `copy` (optional) receives
// the new parameter rounded to copy_dtype. Outside of `decay` weight_decay is 0. Bytes, fp32: read
// 16n, write 12n.
struct AdamWStep {
  void* param;
  const void* grad;
  void* m;
  void* v;
  void* copy;
  std::int64_t n;
  DType dtype, grad_dtype, copy_dtype;
  double lr, beta1, beta2, eps, weight_decay;
  double correction1, correction2;
  float grad_scale;
  DecayRanges decay = {};
};

// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675,
// program 1), with decoupled weight decay:
//   p -= lr*weight_decay*p; p -= lr * sign(b1*m + (1-b1)*g); m = b2*m + (1-b2)*g.
// sign(0) = 0; a NaN stays a NaN, in the parameter too. g = grad * grad_scale. fp32 (or fp64) param
// and m; grad of grad_dtype. `copy` as AdamWStep's. Outside of `decay` weight_decay is 0. Bytes,
// fp32: read 12n, write 8n.
struct LionStep {
  void* param;
  const void* grad;
  void* m;
  void* copy;
  std::int64_t n;
  DType dtype, grad_dtype, copy_dtype;
  double lr, beta1, beta2, weight_decay;
  float grad_scale;
  DecayRanges decay = {};
};

// SGD with momentum (torch.optim.SGD): g = grad*grad_scale + weight_decay*p; b = momentum*b +
// (1-dampening)*g (b = g at the first step); p -= lr * (nesterov ? g + momentum*b : b).
// momentum_buffer null when momentum is 0. Outside of `decay` weight_decay is 0.
struct SgdStep {
  void* param;
  const void* grad;
  void* momentum_buffer;
  void* copy;
  std::int64_t n;
  DType dtype, grad_dtype, copy_dtype;
  double lr, momentum, dampening, weight_decay;
  bool nesterov, first_step;
  float grad_scale;
  DecayRanges decay = {};
};

}  // namespace tessera::kernels
