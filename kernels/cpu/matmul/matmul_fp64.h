// Matrix products in double precision, for gradient checks and references.
#pragma once

#include "kernels/matmul.h"

namespace tessera::kernels::cpu {

// One product (without batch) with every option of Matmul. Each element of c sums over k in
// ascending order in one accumulator, so neither shapes nor the number of threads change a bit.
void matmul_fp64(const Matmul& product);

}  // namespace tessera::kernels::cpu
