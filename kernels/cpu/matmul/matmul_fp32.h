// Matrix products in single precision for processors on which oneDNN's rounding depends on the
// product's shape and on the threads.
#pragma once

#include "kernels/matmul.h"

namespace tessera::kernels::cpu {

// One product (batch and bias excepted) with every option of Matmul. Each element of c sums over k
// in ascending order by fused steps, so that no shape and no number of threads changes a bit. alpha
// scales the elements of a.
void matmul_fp32_in_order(const Matmul& product);

}  // namespace tessera::kernels::cpu
