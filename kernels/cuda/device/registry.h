// The GPU's row of kernels: a file of kernels/cuda for each of kernels/cpu, under the same names.
#pragma once

#include "kernels/registry.h"

namespace tessera::kernels {

namespace cuda {
// All of them return at once; pointers are device memory that stays valid until the stream has
// passed.
#define TESSERA_KERNEL_DECLARATION(name, Arguments) void name(const Arguments&, Queue);
TESSERA_KERNELS(TESSERA_KERNEL_DECLARATION)
#undef TESSERA_KERNEL_DECLARATION
}  // namespace cuda

const KernelTable& cuda_kernels();

}  // namespace tessera::kernels
