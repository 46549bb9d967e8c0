// Device code of attention's variants: the first keys that queries see with a window and with
// documents, and the soft cap of scores. Kernels have a template parameter for it, so calls without
// variants have none of it.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/attention_tiles.h"
#include "kernels/cuda/device/math.h"

namespace tessera::kernels::cuda {

// The first key that a query sees: it does not decrease from one query to the next. Positions
// outside the sample give 0; their queries see nothing, or do not exist.
__device__ __forceinline__ int first_key_seen(const AttentionShape& shape, int batch, int query) {
  const int position = query + causal_offset(shape);
  if (position < 0 || position >= shape.key_length) return 0;
  int first = shape.window > 0 ? position - static_cast<int>(shape.window) + 1 : 0;
  if (shape.document_starts != nullptr) {
    const int start = shape.document_starts[batch * shape.key_length + position];
    first = start > first ? start : first;
  }
  return first < 0 ? 0 : first;
}

// All queries that see any key up to last_key are below the result.
__device__ __forceinline__ int queries_seeing(const AttentionShape& shape, int batch,
                                              int last_key) {
  int end = static_cast<int>(shape.key_length);
  if (shape.window > 0) {
    const int behind = last_key + static_cast<int>(shape.window);
    end = behind < end ? behind : end;
  }
  if (shape.document_starts != nullptr) {
    // The next document's first position, by bisection.
    const std::int32_t* const starts = shape.document_starts + batch * shape.key_length;
    int low = last_key;  // in the document of last_key
    while (low + 1 < end) {
      const int middle = low + (end - low) / 2;
      if (starts[middle] > last_key) {
        end = middle;
      } else {
        low = middle;
      }
    }
  }
  const int queries = end - causal_offset(shape);
  const auto length = static_cast<int>(shape.query_length);
  return queries < 0 ? 0 : queries < length ? queries : length;
}

// soft_cap * tanh(score * scale / soft_cap), in single precision, for scores of 16-bit types: the
// error is a few 1e-7 of the cap. Without a cap the score stays as it is, before the scale.
__device__ __forceinline__ float capped(const AttentionShape& shape, float score) {
  if (shape.soft_cap <= 0.0f) return score;
  const float power = flushed_exp2(score * (2.0f * log2_of_e * shape.scale / shape.soft_cap));
#if defined(__CUDA_ARCH__)
  return shape.soft_cap * (1.0f - __fdividef(2.0f, power + 1.0f));
#else
  return shape.soft_cap * (1.0f - 2.0f / (power + 1.0f));
#endif
}
// The scale that capped() leaves to apply.
__device__ __forceinline__ float scale_after_cap(const AttentionShape& shape) {
  return shape.soft_cap > 0.0f ? 1.0f : shape.scale;
}

// The derivative of the capped score by the scaled one, 1 - tanh^2, from a probability and its
// row's probability_shift(): scores are not kept.
__device__ __forceinline__ float slope_of_cap(const AttentionShape& shape, float probability,
                                              float shift) {
  if (shape.soft_cap <= 0.0f) return 1.0f;
  if (probability == 0.0f) return 0.0f;
#if defined(__CUDA_ARCH__)
  const float power = __log2f(probability);
#else
  const float power = log2f(probability);
#endif
  const float ratio = (power + shift) / (log2_of_e * shape.soft_cap);
  return 1.0f - ratio * ratio;
}

}  // namespace tessera::kernels::cuda
