// What a language model computes for its next token: a few rows at a time, and attention over the
// tokens before. Nothing here is recorded for backward; with gradients on it is misuse.
#pragma once

#include "engine/ops.h"

namespace tessera {

// linear(), where x has a few rows at the rate at which the weight is read: such a row's bits
// differ from linear()'s, and do not depend on the other rows.
Tensor decode_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     WeightLayout layout);

// A sequence's keys and values so far, in rows of [capacity, ...], of which the first `length`
// count. Rows that hold more than keys or values (packed projections) say from which element on.
struct CachedRows {
  Tensor keys, values;
  std::int64_t key_offset = 0, value_offset = 0;
  std::int64_t length = 0;
};

// Causal attention of a sequence's last tokens, whose keys and values are cached already: q [1, T,
// row], of which the first heads * head_dim elements of a row are queries -> [1, T, heads *
// head_dim].
Tensor cached_attention(const Tensor& q, std::int64_t head_dim, const CachedRows& cache,
                        const AttentionOptions& options);

}  // namespace tessera
