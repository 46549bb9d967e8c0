// CUDA's built-in variables: the running thread and its block.
#pragma once

#include <cuda_runtime_api.h>

// The scheduler sets these whenever it switches to another thread of the block, or to another
// block.
inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local dim3 blockDim{};
inline constinit thread_local dim3 gridDim{};
inline constexpr int warpSize = 32;
