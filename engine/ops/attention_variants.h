// The options of attention beyond the causal mask, for the ops that take AttentionOptions.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/error.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "kernels/attention.h"

namespace tessera::ops {

// Throws a logic_error unless window, soft cap and documents are valid for these lengths. `q` is
// the tensor of queries, [batch, ...].
inline void check_variants(const char* op, const Tensor& q, const AttentionOptions& options,
                           std::int64_t query_length, std::int64_t key_length) {
  if (options.window) {
    TESSERA_REQUIRE(*options.window >= 1 && options.causal,
                    "{}: a window of {} with queries {} and causal = {}; a window is at least 1 "
                    "and needs causal attention",
                    op, *options.window, q.shape().to_string(), options.causal);
  }
  if (options.soft_cap) {
    TESSERA_REQUIRE(*options.soft_cap > 0 && std::isfinite(*options.soft_cap),
                    "{}: a soft cap of {} with queries {}; it must be above 0 and finite", op,
                    *options.soft_cap, q.shape().to_string());
  }
  const Tensor& starts = options.document_starts;
  if (!starts.defined()) return;
  require_same_device(op, q, starts);
  TESSERA_REQUIRE(options.causal && query_length == key_length &&
                      starts.shape() == (Shape{q.size(0), key_length}) && starts.dtype() == int32,
                  "{}: document_starts of {} {} for {} queries and {} keys of {} samples with "
                  "causal = {}; int32 [samples, keys], as many keys as queries and causal "
                  "attention are required",
                  op, name_of(starts.dtype()), starts.shape().to_string(), query_length, key_length,
                  q.size(0), options.causal);
}

// Writes window and soft cap into a shape that has its lengths.
inline void set_variants(kernels::AttentionShape& shape, const AttentionOptions& options) {
  // A window that hides no key is none, so the call has the bits of one without it.
  if (options.window && *options.window < shape.key_length) shape.window = *options.window;
  if (options.soft_cap) shape.soft_cap = static_cast<float>(*options.soft_cap);
}

// Throws a logic_error unless the sinks, if there are any, are valid.
void check_sinks(const char* op, const Tensor& q, const AttentionOptions& options);
// Scales the rows of an output [batch, Tq, heads * D] with their log_sum_exp [batch, heads, Tq] to
// what the sinks, if there are any, leave of them.
Tensor with_sinks(const Tensor& out, const Tensor& log_sum_exp, const AttentionOptions& options);

// The bias in the dtype of the statistics, undefined if there is none. Throws a logic_error unless
// it broadcasts to [batch, heads, query_length, key_length]. Writes its strides into `shape`, which
// has these sizes.
Tensor prepare_bias(const char* op, const Tensor& q, const AttentionOptions& options,
                    kernels::AttentionShape& shape);

}  // namespace tessera::ops
