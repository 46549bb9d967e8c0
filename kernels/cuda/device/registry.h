// The GPU's kernel table: for each file of kernels/cpu one of the same name in kernels/cuda.
#pragma once

#include "kernels/registry.h"

namespace tessera::kernels {

namespace cuda {
// All of them return at once; pointers are device memory that must stay valid until the stream has
// finished the kernel.
#define TESSERA_KERNEL_DECLARATION(name, Arguments) void name(const Arguments&, Queue);
TESSERA_KERNELS(TESSERA_KERNEL_DECLARATION)
#undef TESSERA_KERNEL_DECLARATION
}  // namespace cuda

const KernelTable& cuda_kernels();

}  // namespace tessera::kernels
