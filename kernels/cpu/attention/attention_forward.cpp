// Attention forward: for each block of queries it processes the keys in tiles, with a running
// maximum and sum, so only one tile of scores exists at a time.
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "kernels/cpu/attention/attention_head.h"
#include "kernels/cpu/attention/attention_single.h"
#include "kernels/registry.h"

namespace tessera::kernels::cpu {
namespace {

struct ForwardScratch {
  ScratchBuffer q, k, v, bias, scores, probabilities, sums, maximum, sum, factor;
};

// Turns running maxima and sums into log-sum-exps, and `factor` into the divisor of the sums of
// values.
template <class C>
void finish_statistics(C* maximum, const C* sum, C* factor, double kept_scale, std::int64_t rows) {
  for (std::int64_t r = 0; r < rows; ++r) {
    factor[r] = sum[r] == C{0} ? C{0} : static_cast<C>(kept_scale) / sum[r];
    maximum[r] += std::log(sum[r]);  // a row without visible keys keeps -inf
  }
}

// One head of one sample.
template <class C>
class ForwardHead {
 public:
  ForwardHead(const AttentionPlan& plan, const AttentionForward& arguments, ForwardScratch& scratch,
              std::int64_t batch, std::int64_t head)
      : plan_(plan), arguments_(arguments), batch_(batch), head_(head) {
    const AttentionShape& s = plan.shape;
    const std::int64_t key_head = head / plan.group;
    q_ = plan.widened(plan.queries(arguments.q, s.q_stride, batch, head, s.head_dim),
                      s.query_length, scratch.q);
    k_ = plan.widened(plan.keys(arguments.k, s.k_stride, batch, key_head, s.head_dim), s.key_length,
                      scratch.k);
    v_ = plan.widened(plan.keys(arguments.v, s.v_stride, batch, key_head, plan.value_dim),
                      s.key_length, scratch.v);
    bias_ = plan.key_bias(batch, scratch.bias);
    scores_ = scratch.scores.get<C>(kQueryRows * kMostTileColumns);
    probabilities_ = scratch.probabilities.get<C>(kQueryRows * kMostTileColumns);
    sums_ = scratch.sums.get<C>(kQueryRows * plan.value_dim);
    maximum_ = scratch.maximum.get<C>(kQueryRows);
    sum_ = scratch.sum.get<C>(kQueryRows);
    factor_ = scratch.factor.get<C>(kQueryRows);
  }

  void run() {
    for (std::int64_t row = 0; row < plan_.shape.query_length; row += kQueryRows) {
      run_rows(row, std::min(kQueryRows, plan_.shape.query_length - row));
    }
  }

 private:
  void run_rows(std::int64_t first, std::int64_t rows) {
    const AttentionShape& s = plan_.shape;
    const std::int64_t width = plan_.value_dim;
    std::fill_n(maximum_, rows, -std::numeric_limits<C>::infinity());
    std::fill_n(sum_, rows, C{0});
    const QueryBlock queries = plan_.block(batch_, first, rows);
    if (queries.first_key == queries.last_key) std::fill_n(sums_, rows * width, C{0});
    for (std::int64_t key = queries.first_key; key < queries.last_key; key += kMostTileColumns) {
      add_tile(queries, key, std::min(kMostTileColumns, queries.last_key - key));
    }
    finish_statistics(maximum_, sum_, factor_, 1.0 / (1.0 - static_cast<double>(s.dropout)), rows);
    scale_rows(plan_.operand, sums_, factor_, rows, width);
    plan_.write_rows(sums_, arguments_.out,
                     (batch_ * s.query_length + first) * s.out_stride + head_ * width, s.out_stride,
                     rows, width);
    if (arguments_.log_sum_exp != nullptr) {
      C* const log_sum_exp = static_cast<C*>(arguments_.log_sum_exp);
      std::copy_n(maximum_, rows,
                  log_sum_exp + (batch_ * s.heads + head_) * s.query_length + first);
    }
  }

  void add_tile(const QueryBlock& queries, std::int64_t key, std::int64_t columns) {
    const std::int64_t first = queries.first, rows = queries.rows;
    const bool is_first = key == queries.first_key;
    multiply(plan_, {.a = {element(q_.data, plan_.operand, first * q_.stride), q_.stride},
                     .b = {element(k_.data, plan_.operand, key * k_.stride), k_.stride},
                     .c = scores_,
                     .m = rows,
                     .n = columns,
                     .k = plan_.shape.head_dim,
                     .transpose_b = true});
    const AttentionShape& s = plan_.shape;
    AttentionTile tile = plan_.tile(queries, head_, key, columns, bias_);
    if (is_first) {
      tile.upcoming = plan_.rows_of_next_head({{arguments_.q, s.q_stride, s.head_dim, false},
                                               {arguments_.k, s.k_stride, s.head_dim, true},
                                               {arguments_.v, s.v_stride, plan_.value_dim, true}},
                                              batch_, head_, first, rows);
    }
    softmax_tile(tile, plan_.operand, scores_,
                 {.maximum = maximum_, .sum = sum_, .factor = factor_}, probabilities_);
    if (!is_first) scale_rows(plan_.operand, sums_, factor_, rows, plan_.value_dim);
    multiply(plan_, {.a = {probabilities_, columns},
                     .b = {element(v_.data, plan_.operand, key * v_.stride), v_.stride},
                     .c = sums_,
                     .m = rows,
                     .n = plan_.value_dim,
                     .k = columns,
                     .accumulate = !is_first});
  }

  const AttentionPlan& plan_;
  const AttentionForward& arguments_;
  std::int64_t batch_, head_;
  HeadRows q_{}, k_{}, v_{};
  const void* bias_ = nullptr;
  C* scores_ = nullptr;
  C* probabilities_ = nullptr;  // of the operands' type, which may be narrower
  C* sums_ = nullptr;
  C* maximum_ = nullptr;
  C* sum_ = nullptr;
  C* factor_ = nullptr;
};

}  // namespace

void attention_forward(const AttentionForward& arguments, Queue) {
  const AttentionPlan plan(arguments.shape, "attention_forward");
  if (is_single_query(arguments)) return attention_single(arguments);
  const std::int64_t heads = plan.shape.heads;
  parallel_for(0, plan.shape.batch * heads, 1, [&](std::int64_t first, std::int64_t last) {
    static thread_local ForwardScratch scratch;
    for (std::int64_t i = first; i < last; ++i) {
      if (plan.compute == float64) {
        ForwardHead<double>(plan, arguments, scratch, i / heads, i % heads).run();
      } else {
        ForwardHead<float>(plan, arguments, scratch, i / heads, i % heads).run();
      }
    }
  });
}

}  // namespace tessera::kernels::cpu
