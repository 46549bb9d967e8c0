// Matrix products by oneDNN alone, as the floor that the engine's own are measured against.
#pragma once

#include <functional>
#include <string>

#include "kernels/matmul.h"

namespace tessera::bench {

// Whether oneDNN has products of the dtype on this processor: in bfloat16 not on all.
bool has_bare_products(DType dtype);

// The dtype to compare products of `dtype` with: itself, or float32 where oneDNN has none of it.
DType bare_dtype(DType dtype);

// How oneDNN reads b: where it lies, or from a copy in the layout that its fastest kernel wants.
// The copy is made by every call, because what it copies changes with every step.
enum class BareLayout { in_place, packed };

struct BareProduct {
  std::function<void()> run;
  std::string kernel;  // oneDNN's name of what computes it
};

// The product that `p` describes, on the calling thread: dnnl_sgemm in float32 (a batch as so many
// calls, b in place), the matmul primitive in bfloat16. The memory must outlive the result.
// has_bare_products(p.dtype) must hold.
BareProduct bare_product(const kernels::Matmul& p, BareLayout layout = BareLayout::in_place);

}  // namespace tessera::bench
