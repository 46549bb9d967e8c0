// Matrix products by oneDNN alone, as the floor that the engine's own are measured against.
#pragma once

#include <functional>

#include "kernels/matmul.h"

namespace tessera::bench {

// Whether oneDNN has products of the dtype on this processor: in bfloat16 not on all.
bool has_bare_products(DType dtype);

// The product that `p` describes, on the calling thread: dnnl_sgemm in float32 (a batch as so many
// calls), the matmul primitive in bfloat16. The memory must outlive the result.
// has_bare_products(p.dtype) must hold.
std::function<void()> bare_product(const kernels::Matmul& p);

}  // namespace tessera::bench
