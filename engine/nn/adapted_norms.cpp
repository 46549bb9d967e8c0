// |W_o + s B_o A|^2 = |W_o|^2 + 2 s B_o (W A^T)_o + s^2 B_o (A A^T) B_o^T: one pass over W, and one
// product of it with as many rows as the adapter's rank.
#include "engine/nn/adapted_norms.h"

#include <algorithm>
#include <vector>

#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/ops/products/quantized.h"
#include "engine/tensor_ops.h"

namespace tessera::nn {
namespace {

DType dtype_of_sums(DType dtype) {
  return dtype == float64 ? float64 : float32;
}

// The squares of the norms of a matrix's rows. The kernel also writes the divided rows, which are
// dropped.
Tensor squares_of_rows(const Tensor& tile) {
  const std::int64_t rows = tile.size(0), columns = tile.size(1);
  const Tensor divided = Tensor::empty(tile.shape(), tile.dtype(), tile.device());
  const Tensor norms = Tensor::empty({rows}, dtype_of_sums(tile.dtype()), tile.device());
  TESSERA_LAUNCH(tile.device(), normalize_rows,
                 {.x = tile.data(),
                  .out = divided.raw_data(),
                  .norms = norms.raw_data(),
                  .rows = rows,
                  .dim = columns,
                  .eps = 1e-12,
                  .dtype = tile.dtype()});
  return square(norms);
}

// |W_o|^2 of each output. Codes become numbers of `dtype`.
Tensor squares_of_outputs(const FrozenMatrix& matrix, DType dtype) {
  const std::int64_t rows = matrix.shape[0], columns = matrix.shape[1];
  const std::int64_t height =
      std::max(nf4_block, ops::dequantized_tile / columns / nf4_block * nf4_block);
  const bool of_rows = matrix.layout == WeightLayout::out_in;
  std::vector<Tensor> parts;
  Tensor sums;
  for (std::int64_t first = 0; first < rows; first += height) {
    const std::int64_t count = std::min(height, rows - first);
    const Tensor tile = is_quantized_weight(matrix.weight)
                            ? dequantize_rows(matrix.weight, rows, columns, dtype, first, count)
                            : narrow(matrix.weight, 0, first, count);
    if (of_rows) {
      parts.push_back(squares_of_rows(tile));
      continue;
    }
    const Tensor part = sum(square(cast(tile, dtype_of_sums(tile.dtype()))), 0);
    sums = sums.defined() ? sums + part : part;
  }
  if (!of_rows) return sums;
  return parts.size() == 1 ? parts.front() : concatenate(parts, 0);
}

}  // namespace

Tensor adapted_norms(const FrozenMatrix& matrix, const Tensor& a, const Tensor& b, double scaling) {
  const NoGradGuard no_grad;
  FrozenMatrix frozen = matrix;
  frozen.weight = matrix.weight.detach();
  const DType dtype = dtype_of_sums(a.dtype());
  const Tensor own = cast(squares_of_outputs(frozen, a.dtype()), dtype);
  // [rank, out], in the dtype in which the layer's products are computed.
  const Tensor projected = linear(a.detach(), frozen.weight, {}, frozen.layout);
  const Tensor left = cast(b.detach(), dtype), right = cast(a.detach(), dtype);
  const Tensor between = matmul(right, right, {.b = true});
  const Tensor with_weight = transpose(cast(projected, dtype)) * (2 * scaling);
  const Tensor with_itself = matmul(left, between) * (scaling * scaling);
  // Rounding can leave a little less than nothing of a row that the adapter cancels.
  return sqrt(clamp(own + sum(left * (with_weight + with_itself), 1), 0));
}

}  // namespace tessera::nn
