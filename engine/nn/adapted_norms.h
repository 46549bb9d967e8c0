// The norms by which DoRA divides the rows of a layer's weight with its adapter.
#pragma once

#include "engine/ops.h"
#include "engine/tensor.h"

namespace tessera::nn {

// A layer's frozen weight: floating, or codes (engine/ops/products/quantized.h). `shape` is that of
// its matrix, [out, in] or [in, out] as the layout says.
struct FrozenMatrix {
  Tensor weight;
  Shape shape;
  WeightLayout layout = WeightLayout::out_in;
};

// The Euclidean norm of each row of W + scaling * B A, W as [out, in], A [rank, in], B [out, rank]:
// [out] in fp32 (fp64 for fp64), outside the graph. Neither the sum nor the numbers of codes exist
// as a whole: memory for a tile of W (ops::dequantized_tile) is needed. The order of all sums
// depends on the shapes alone.
Tensor adapted_norms(const FrozenMatrix& matrix, const Tensor& a, const Tensor& b, double scaling);

}  // namespace tessera::nn
