// Reports of bad data by kernels.
#pragma once

#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/gpu.h"

namespace tessera::kernels::cuda {

// Keeps the first report; the host reads it after it has waited for the stream.
__device__ inline void report_fault(Fault* fault, Fault::Kind kind, std::int64_t position,
                                    std::int64_t value, std::int64_t limit) {
  if (atomicCAS(&fault->claimed, 0u, 1u) != 0u) return;
  fault->position = position;
  fault->value = value;
  fault->limit = limit;
  fault->kind = kind;
}

}  // namespace tessera::kernels::cuda
