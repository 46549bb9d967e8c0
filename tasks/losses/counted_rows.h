// The rows of a loss whose targets count.
#pragma once

#include "engine/ops.h"
#include "engine/tensor_ops.h"

namespace tessera::tasks {

// A target that does not count, as in torch.
inline constexpr std::int64_t ignored_target = -100;

// 1 for a row whose target counts, else 0: [targets, 1].
inline Tensor counted_rows(const Tensor& targets, DType dtype) {
  const Tensor ids = reshape(targets, {targets.elements(), 1});
  const Device device = targets.device();
  return where(not_equal(ids, static_cast<double>(ignored_target)),
               Tensor::full({1}, 1, dtype, device), Tensor::zeros({1}, dtype, device));
}

}  // namespace tessera::tasks
