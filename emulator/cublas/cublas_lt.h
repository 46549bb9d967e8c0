// cuBLASLt on the emulated device: the functions that kernels/cuda/matmul/matmul_cublas.cpp calls.
// A product is checked against its descriptors as the library's reference describes them. It is
// then put on the stream and computed there in its plainest form; its accesses are declared to the
// checker. Sums run over k in ascending order in the compute type. The emulator refuses attributes,
// layouts, epilogues and mixes of types that it does not support: CUBLAS_STATUS_NOT_SUPPORTED or
// CUBLAS_STATUS_INVALID_VALUE, with a text on stderr.
#pragma once

#include "kernels/cuda/matmul/matmul_cublas_library.h"

namespace tessera::emulator {

// For CublasLtReplacement. Algorithms ask for a little workspace, so that callers must provide it.
kernels::cuda::CublasLt cublas_lt();

}  // namespace tessera::emulator
