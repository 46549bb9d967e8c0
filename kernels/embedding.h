// Table look-up and its deterministic backward.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// out[r] = table[ids[r]]. An id outside [0, entries) is an Error(data) with the position and the
// id.
struct EmbeddingForward {
  const void* ids;  // [rows] int32 or int64
  DType id_dtype;
  const void* table;  // [entries, dim]
  void* out;          // [rows, dim]
  std::int64_t rows, entries, dim;
  DType dtype;
};

// dtable[ids[r]] (+)= dout[r]. Rows of one id are summed in fp32 in ascending r, and rounded once.
// Without accumulate the whole table is written (zeros for ids that do not occur).
struct EmbeddingBackward {
  const void* ids;
  DType id_dtype;
  const void* dout;
  void* dtable;
  std::int64_t rows, entries, dim;
  DType dtype;
  bool accumulate = false;
};

}  // namespace tessera::kernels
