// CUDA's built-in variables: which thread of which block runs.
#pragma once

#include <cuda_runtime_api.h>

// Set by the scheduler whenever another thread of the block, or another block, gets its turn.
inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local dim3 blockDim{};
inline constinit thread_local dim3 gridDim{};
inline constexpr int warpSize = 32;
