// bfloat16 matrix products on AMX, the matrix unit of recent Intel processors. oneDNN 2.6 has fast
// kernels only for dense operands and reaches a third of the unit's rate. These kernels take any
// strides and are about twice as fast.
#pragma once

#include "kernels/matmul.h"

namespace tessera::kernels::cpu {

// True if the processor has AMX for bfloat16, the kernel lets this process use it, and
// DNNL_MAX_CPU_ISA does not forbid it to oneDNN.
bool has_amx_products();

// One product (without batch) of bfloat16 operands with every option of Matmul. An element of c
// sums over k in one fixed order, for every shape, stride and number of threads.
void amx_matmul(const Matmul& product);

}  // namespace tessera::kernels::cpu
