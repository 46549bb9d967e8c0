// Matrix products by oneDNN alone, as the reference for the engine's own products.
#pragma once

#include <functional>
#include <string>

#include "kernels/matmul.h"

namespace tessera::bench {

// The dtype to compare products of `dtype` (float32 or bfloat16) with: itself, or float32 if this
// processor multiplies bfloat16 no faster, or not at all.
DType bare_dtype(DType dtype);

// How oneDNN reads b: in place, or from a copy in the layout of its fastest kernel. Every call
// makes this copy, because b changes with every step.
enum class BareLayout { in_place, packed };

struct BareProduct {
  std::function<void()> run;
  std::string kernel;  // oneDNN's name of the kernel
};

// The product that `p` describes, on the calling thread: dnnl_sgemm in float32 (one call for each
// matrix of a batch, b in place), the matmul primitive in bfloat16. The memory must outlive the
// result. bare_dtype(p.dtype) must be p.dtype.
BareProduct bare_product(const kernels::Matmul& p, BareLayout layout = BareLayout::in_place);

}  // namespace tessera::bench
