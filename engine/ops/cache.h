// Ops for computing a language model's next token: a few rows at a time, and attention over earlier
// tokens. They do not support backward: calling them with gradients on is misuse.
#pragma once

#include "engine/ops.h"

namespace tessera {

// linear() for a few rows of x; it runs at the rate at which the weight is read. The bits of such a
// row differ from linear()'s, and do not depend on the other rows.
Tensor decode_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     WeightLayout layout);

// A sequence's cached keys and values, in rows of [capacity, ...]; the first `length` rows are
// valid. In rows that hold more (packed projections), the offsets give the first element.
struct CachedRows {
  Tensor keys, values;
  std::int64_t key_offset = 0, value_offset = 0;
  std::int64_t length = 0;
  std::int64_t value_dim = 0;  // of a head; 0: as the keys'
};

// Causal attention of a sequence's last tokens, whose keys and values are already in the cache. q
// is [1, T, row]; the first heads * head_dim elements of a row are queries. Returns [1, T, heads *
// value_dim]. A bias is [.., T, length]. Dropout has no effect; a key mask and documents are
// refused.
Tensor cached_attention(const Tensor& q, std::int64_t head_dim, const CachedRows& cache,
                        const AttentionOptions& options);

}  // namespace tessera
