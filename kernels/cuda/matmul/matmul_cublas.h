// Matrix products with cuBLASLt.
#pragma once

#include "kernels/cuda/device/context.h"
#include "kernels/cuda/matmul/matmul_cublas_library.h"
#include "kernels/matmul.h"

namespace tessera::kernels::cuda {

// Starts the product on the context's stream and returns true. Returns false, without starting
// anything, if cuBLASLt does not cover it:
//   * k is 0, or a, b, c or bias does not begin on 16 bytes (nor, in a batch, each of the
//   products);
//   * a bias with a result of another type, or of fp64;
//   * a transposed a whose rows do not begin on 16 bytes;
//   * anything for which cuBLASLt offers no algorithm.
// The product's arguments are checked and its sizes are not zero. `library` has functions. The
// context's device is the thread's current one. Any other failure of cuBLASLt is an Error(runtime).
//
// This keeps the guarantee of kernels/matmul.h about rows: the algorithm is chosen for the product
// with a fixed number of rows, among those that do not split k, and then used for every number of
// rows. A product with a transposed a is a weight's gradient: its rows are the weight's, and its
// algorithm is chosen for its own shape, among all that add partial sums in one order.
//
// The library adds biases (CUBLASLT_EPILOGUE_BIAS) before it rounds. Its GELU epilogue is not used:
// it approximates tanh, and applies it before rounding, whereas BiasGelu promises the exact form or
// the accurate tanh of the rounded value.
bool matmul_cublas(const Matmul& product, Context& context, const CublasLtLibrary& library);

}  // namespace tessera::kernels::cuda
