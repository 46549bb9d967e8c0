// Matrix products in single precision for processors on which oneDNN's rounding depends on the
// product's shape and on the number of threads.
#pragma once

#include "kernels/matmul.h"

namespace tessera::kernels::cpu {

// One product (without batch and bias) with every option of Matmul. Each element of c sums over k
// in ascending order by fused steps, so neither shapes nor the number of threads change a bit.
// alpha scales the elements of a.
void matmul_fp32_in_order(const Matmul& product);

}  // namespace tessera::kernels::cpu
