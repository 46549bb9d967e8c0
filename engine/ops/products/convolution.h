// Convolutions over one and two dimensions, as cross-correlations like torch's.
#pragma once

#include <cstdint>

#include "engine/tensor.h"

namespace tessera {

// A number for each of the two dimensions, or one for both.
struct RowsAndColumns {
  std::int64_t rows, columns;
  constexpr RowsAndColumns(std::int64_t both) : rows(both), columns(both) {}
  constexpr RowsAndColumns(std::int64_t of_rows, std::int64_t of_columns)
      : rows(of_rows), columns(of_columns) {}
};

struct Convolution2dOptions {
  RowsAndColumns stride = 1;
  RowsAndColumns padding = 0;  // zeros on both sides
  RowsAndColumns dilation = 1;
  std::int64_t groups = 1;  // divides the channels and the outputs; each group reads its channels
};

struct Convolution1dOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};

// x [samples, channels, rows, columns], weight [outputs, channels / groups, kernel rows, kernel
// columns], bias [outputs] or undefined -> [samples, outputs, ..], where a dimension of n elements
// has (n + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1 places, rounded down. x may have
// any floating dtype and is cast to the weight's.
//
// The windows are copied into columns for a product (a kernel of 1 without padding and with stride
// 1 copies nothing), for some samples at a time, and again in backward: 32 MiB of columns at most,
// or those of one sample. A sample's result does not depend on the other samples.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Convolution2dOptions& options = {});
// The same for x [samples, channels, length] and weight [outputs, channels / groups, kernel].
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Convolution1dOptions& options = {});

}  // namespace tessera
