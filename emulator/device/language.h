// Keywords of the language: qualifiers, built-in variables, types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <concepts>
#include <type_traits>

#include "emulator/scheduler/indices.h"

// The toolkit's headers leave __global__, __device__ and __host__ empty for a host compiler. Those
// below need a definition, because host compilers do not know them.
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))

namespace tessera::emulator {

template <class T, class... Choices>
concept OneOf = (std::same_as<T, Choices> || ...);

}  // namespace tessera::emulator
