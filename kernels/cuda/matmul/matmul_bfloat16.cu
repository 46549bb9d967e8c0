// Matrix products of bfloat16 on tensor cores.
#include "kernels/cuda/matmul/matmul_tensor_core.h"

namespace tessera::kernels::cuda {

void matmul_bfloat16(const Matmul& product, Context& context) {
  tensor_core::run<__nv_bfloat16>(product, context, "matmul_bfloat16");
}

}  // namespace tessera::kernels::cuda
