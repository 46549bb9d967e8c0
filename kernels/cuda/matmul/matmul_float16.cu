// Matrix products of float16 on tensor cores.
#include "kernels/cuda/matmul/matmul_tensor_core.h"

namespace tessera::kernels::cuda {

void matmul_float16(const Matmul& product, Context& context) {
  tensor_core::run<__half>(product, context, "matmul_float16");
}

}  // namespace tessera::kernels::cuda
