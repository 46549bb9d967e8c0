// Parts of attention's backward: the statistics of a block of rows, and the gradient of the bias.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention/attention_head.h"

namespace tessera::kernels::cpu {

// Keys per tile: two tiles of scores and two of operands stay in the second-level cache.
inline constexpr std::int64_t kTileColumns = 256;
static_assert(kTileColumns <= kMostTileColumns);

// Sets delta and log_sum_exp of the queries of one head, as softmax_gradient_tile() takes them.
template <class C>
void load_row_statistics(const AttentionPlan& plan, const AttentionBackward& arguments,
                         const QueryBlock& queries, std::int64_t head, C* delta, C* log_sum_exp) {
  const AttentionShape& s = plan.shape;
  const std::int64_t first = queries.first, rows = queries.rows;
  const HeadRows out =
      plan.queries(arguments.out, s.out_stride, queries.batch, head, plan.value_dim);
  const HeadRows dout =
      plan.queries(arguments.dout, s.out_stride, queries.batch, head, plan.value_dim);
  row_products(s.dtype, element(out.data, s.dtype, first * out.stride), out.stride,
               element(dout.data, s.dtype, first * dout.stride), dout.stride, delta, rows,
               plan.value_dim);
  const std::int64_t offset = (queries.batch * s.heads + head) * s.query_length + first;
  const C* const saved = static_cast<const C*>(arguments.log_sum_exp) + offset;
  for (std::int64_t r = 0; r < rows; ++r) {
    // e^(score - inf) = 0 for every key of a row without visible keys.
    constexpr C infinity = std::numeric_limits<C>::infinity();
    log_sum_exp[r] = saved[r] == -infinity ? infinity : saved[r];
  }
  if (arguments.dlog_sum_exp == nullptr) return;
  const C* const dlog_sum_exp = static_cast<const C*>(arguments.dlog_sum_exp) + offset;
  // A score's gradient has its probability times this as a further term. A row without visible
  // keys has no scores, and may have any gradient.
  for (std::int64_t r = 0; r < rows; ++r) {
    if (std::isfinite(log_sum_exp[r])) delta[r] -= dlog_sum_exp[r];
  }
}

// Writes arguments.bias_gradient.
void make_bias_gradient(const AttentionPlan& plan, const AttentionBackward& arguments);

}  // namespace tessera::kernels::cpu
