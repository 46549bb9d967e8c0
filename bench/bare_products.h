// Matrix products by oneDNN alone, as the floor that the engine's own are measured against.
#pragma once

#include <functional>

#include "kernels/matmul.h"

namespace tessera::bench {

// The product that `p` describes, on the calling thread: dnnl_sgemm in float32 (a batch as so many
// calls), the matmul primitive in bfloat16. The memory must outlive the result.
std::function<void()> bare_product(const kernels::Matmul& p);

}  // namespace tessera::bench
