// bfloat16 matrix products on AMX, the matrix unit of recent Intel processors. oneDNN 2.6 has fast
// kernels for dense operands only and reaches a third of the unit's rate; these take any strides
// and about double that.
#pragma once

#include "kernels/matmul.h"

namespace tessera::kernels::cpu {

// Whether the processor has AMX for bfloat16, the kernel lets this process use it, and oneDNN was
// not told to do without (DNNL_MAX_CPU_ISA).
bool has_amx_products();

// One product (batch excepted) of bfloat16 operands with every option of Matmul. An element of c
// sums over k in one fixed order, whatever the shape, the strides and the number of threads.
void amx_matmul(const Matmul& product);

}  // namespace tessera::kernels::cpu
