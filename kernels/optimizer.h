// Optimizer steps over flat segments: one pass over memory, element-wise, so a segment may be split
// anywhere.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/random.h"

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

// AdamW with moments of 8 bits (Dettmers et al. 2022, "8-bit Optimizers via Block-wise
// Quantization", arXiv:2110.02861): AdamWStep's formula on the numbers of the codes, whose results
// become codes again (base/eight_bit.h). The parameter takes the step of the moments before they
// are rounded. fp32 param; codes: [n]; scales: [ceil(n / eight_bit_block)]; all begin at a block.
// The edges of `decay` are multiples of the block. State begins as zeros. Bytes: read 6n and the
// gradient, write 6n; scales: 1/16 n.
struct AdamW8BitStep {
  void* param;
  const void* grad;
  void* m_codes;
  void* v_codes;
  void* m_scales;
  void* v_scales;
  std::int64_t n;
  DType grad_dtype;
  double lr, beta1, beta2, eps, weight_decay;
  double correction1, correction2;
  float grad_scale;
  DecayRanges decay = {};
};

// AdamW with bf16 m and v: AdamWStep's formula in fp32, after which m and v are rounded to one of
// their two bf16 neighbours at random, such that the mean is the number itself. (A moment that
// takes 1/1000 of a new square in each step would never change if it were rounded to nearest.) The
// bits below bf16's are added to 16 random bits, and a carry rounds up: element i takes the low
// half of word i % 4 of philox(key, i / 4) for m and the high half for v, where i counts from
// `first`. Infinite and NaN numbers are kept. fp32 param. Bytes: read 8n and the gradient, write
// 8n.
struct AdamWRoundedStep {
  void* param;
  const void* grad;
  void* m;
  void* v;
  std::int64_t n, first;
  DType grad_dtype;
  RandomKey key;
  double lr, beta1, beta2, eps, weight_decay;
  double correction1, correction2;
  float grad_scale;
  DecayRanges decay = {};
};

// Schedule-free AdamW (Defazio et al. 2024, "The Road Less Scheduled", arXiv:2405.15682), with the
// conventions of its authors' package. The gradient is that at p, which lies between the sequence z
// of steps and its average x, the weights to evaluate:
//   v = b2*v + (1-b2)*g*g; d = g / (sqrt(v)/sqrt(correction2) + eps) + weight_decay*p;
//   z -= lr*d; x = between(x, z, part); p = between(x, z, 1-b1).
// between(x, z, w) is x + w*(z-x) for w below a half, else z + (1-w)*(x-z). At the first step z and
// x are p, whatever their memory holds. g = grad * grad_scale. fp32 (or fp64) param, z, v, average;
// grad of grad_dtype. Outside of `decay` weight_decay is 0. Bytes, fp32: read 16n and the gradient,
// write 16n.
struct ScheduleFreeStep {
  void* param;
  const void* grad;
  void* z;
  void* v;
  void* average;
  std::int64_t n;
  DType dtype, grad_dtype;
  double lr, beta1, beta2, eps, weight_decay;
  double correction2, part;
  bool first_step;
  float grad_scale;
  DecayRanges decay = {};
};

// The param of the last ScheduleFreeStep from its z and average, with the same bits. Bytes, fp32:
// read 8n, write 4n.
struct ScheduleFreePoint {
  void* param;
  const void* z;
  const void* average;
  std::int64_t n;
  DType dtype;
  double beta1;
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
