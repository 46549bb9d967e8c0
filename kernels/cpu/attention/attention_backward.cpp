// Attention backward: recomputes the probabilities from the log-sum-exps, tile by tile. One task
// owns a key head with its query heads, so its key and value gradients are summed in one fixed
// order.
#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/attention/attention_gradients.h"
#include "kernels/registry.h"

namespace tessera::kernels::cpu {
namespace {

struct BackwardScratch {
  ScratchBuffer q, k, v, dout, bias, scores, gradients, probabilities, score_gradients, dq, dk, dv,
      delta, log_sum_exp;
};

// One key head of one sample.
template <class C>
class BackwardHead {
 public:
  BackwardHead(const AttentionPlan& plan, const AttentionBackward& arguments,
               BackwardScratch& scratch, std::int64_t batch, std::int64_t key_head)
      : plan_(plan), arguments_(arguments), scratch_(scratch), batch_(batch), key_head_(key_head) {
    const AttentionShape& s = plan.shape;
    k_ = plan.widened(plan.keys(arguments.k, s.k_stride, batch, key_head, s.head_dim), s.key_length,
                      scratch.k);
    v_ = plan.widened(plan.keys(arguments.v, s.v_stride, batch, key_head, plan.value_dim),
                      s.key_length, scratch.v);
    bias_ = plan.key_bias(batch, scratch.bias);
    scores_ = scratch.scores.get<C>(kQueryRows * kTileColumns);
    gradients_ = scratch.gradients.get<C>(kQueryRows * kTileColumns);
    probabilities_ = scratch.probabilities.get<C>(kQueryRows * kTileColumns);
    score_gradients_ = scratch.score_gradients.get<C>(kQueryRows * kTileColumns);
    dq_ = scratch.dq.get<C>(kQueryRows * s.head_dim);
    dk_ = scratch.dk.get<C>(s.key_length * s.head_dim);
    dv_ = scratch.dv.get<C>(s.key_length * plan.value_dim);
    delta_ = scratch.delta.get<C>(kQueryRows);
    log_sum_exp_ = scratch.log_sum_exp.get<C>(kQueryRows);
  }

  void run() {
    const AttentionShape& s = plan_.shape;
    std::fill_n(dk_, s.key_length * s.head_dim, C{0});
    std::fill_n(dv_, s.key_length * plan_.value_dim, C{0});
    for (std::int64_t head = key_head_ * plan_.group; head < (key_head_ + 1) * plan_.group;
         ++head) {
      q_ = plan_.widened(plan_.queries(arguments_.q, s.q_stride, batch_, head, s.head_dim),
                         s.query_length, scratch_.q);
      narrow_dout_ = plan_.queries(arguments_.dout, s.out_stride, batch_, head, plan_.value_dim);
      dout_ = plan_.widened(narrow_dout_, s.query_length, scratch_.dout);
      for (std::int64_t row = 0; row < s.query_length; row += kQueryRows) {
        run_rows(head, row, std::min(kQueryRows, s.query_length - row));
      }
    }
    const std::int64_t key_row = batch_ * s.key_length;
    plan_.write_rows(dk_, arguments_.dk, key_row * s.k_stride + key_head_ * s.head_dim, s.k_stride,
                     s.key_length, s.head_dim);
    plan_.write_rows(dv_, arguments_.dv, key_row * s.v_stride + key_head_ * plan_.value_dim,
                     s.v_stride, s.key_length, plan_.value_dim);
  }

 private:
  void run_rows(std::int64_t head, std::int64_t first, std::int64_t rows) {
    const AttentionShape& s = plan_.shape;
    const QueryBlock queries = plan_.block(batch_, first, rows);
    load_row_statistics(plan_, arguments_, queries, head, delta_, log_sum_exp_);
    if (queries.first_key == queries.last_key) std::fill_n(dq_, rows * s.head_dim, C{0});
    for (std::int64_t key = queries.first_key; key < queries.last_key; key += kTileColumns) {
      add_tile(head, queries, key, std::min(kTileColumns, queries.last_key - key));
    }
    plan_.write_rows(dq_, arguments_.dq,
                     (batch_ * s.query_length + first) * s.q_stride + head * s.head_dim, s.q_stride,
                     rows, s.head_dim);
  }

  void add_tile(std::int64_t head, const QueryBlock& queries, std::int64_t key,
                std::int64_t columns) {
    const std::int64_t dim = plan_.shape.head_dim, value_dim = plan_.value_dim;
    const std::int64_t first = queries.first, rows = queries.rows;
    const bool is_first = key == queries.first_key;
    const HeadRows q{element(q_.data, plan_.operand, first * q_.stride), q_.stride};
    const HeadRows k{element(k_.data, plan_.operand, key * k_.stride), k_.stride};
    const HeadRows v{element(v_.data, plan_.operand, key * v_.stride), v_.stride};
    const HeadRows dout{element(dout_.data, plan_.operand, first * dout_.stride), dout_.stride};
    multiply(
        plan_,
        {.a = q, .b = k, .c = scores_, .m = rows, .n = columns, .k = dim, .transpose_b = true});
    multiply(plan_, {.a = dout,
                     .b = v,
                     .c = gradients_,
                     .m = rows,
                     .n = columns,
                     .k = value_dim,
                     .transpose_b = true});
    const AttentionShape& s = plan_.shape;
    AttentionTile tile = plan_.tile(queries, head, key, columns, bias_);
    if (is_first) {
      tile.upcoming = plan_.rows_of_next_head({{arguments_.q, s.q_stride, dim, false},
                                               {arguments_.k, s.k_stride, dim, true},
                                               {arguments_.v, s.v_stride, value_dim, true},
                                               {arguments_.dout, s.out_stride, value_dim, false},
                                               {arguments_.out, s.out_stride, value_dim, false}},
                                              batch_, head, first, rows);
    }
    softmax_gradient_tile(tile, plan_.operand, scores_, gradients_, log_sum_exp_, delta_,
                          probabilities_, score_gradients_);
    multiply(plan_, {.a = {probabilities_, columns},
                     .b = dout,
                     .c = dv_ + key * value_dim,
                     .m = columns,
                     .n = value_dim,
                     .k = rows,
                     .transpose_a = true,
                     .accumulate = true});
    multiply(plan_, {.a = {score_gradients_, columns},
                     .b = q,
                     .c = dk_ + key * dim,
                     .m = columns,
                     .n = dim,
                     .k = rows,
                     .transpose_a = true,
                     .accumulate = true});
    multiply(plan_, {.a = {score_gradients_, columns},
                     .b = k,
                     .c = dq_,
                     .m = rows,
                     .n = dim,
                     .k = columns,
                     .accumulate = !is_first});
  }

  const AttentionPlan& plan_;
  const AttentionBackward& arguments_;
  BackwardScratch& scratch_;
  std::int64_t batch_, key_head_;
  HeadRows q_{}, k_{}, v_{}, dout_{};
  HeadRows narrow_dout_{};  // in the tensors' type
  const void* bias_ = nullptr;
  C* scores_ = nullptr;
  C* gradients_ = nullptr;
  C* probabilities_ = nullptr;    // of the operands' type, which may be narrower
  C* score_gradients_ = nullptr;  // likewise
  C* dq_ = nullptr;
  C* dk_ = nullptr;
  C* dv_ = nullptr;
  C* delta_ = nullptr;
  C* log_sum_exp_ = nullptr;
};

}  // namespace

void attention_backward(const AttentionBackward& arguments, Queue) {
  const AttentionPlan plan(arguments.shape, "attention_backward");
  TESSERA_REQUIRE(arguments.log_sum_exp != nullptr,
                  "attention_backward: the forward's log_sum_exp is needed");
  const std::int64_t heads = plan.shape.key_heads;
  parallel_for(0, plan.shape.batch * heads, 1, [&](std::int64_t first, std::int64_t last) {
    static thread_local BackwardScratch scratch;
    for (std::int64_t i = first; i < last; ++i) {
      if (plan.compute == float64) {
        BackwardHead<double>(plan, arguments, scratch, i / heads, i % heads).run();
      } else {
        BackwardHead<float>(plan, arguments, scratch, i / heads, i % heads).run();
      }
    }
  });
  if (arguments.bias_gradient != nullptr) make_bias_gradient(plan, arguments);
}

}  // namespace tessera::kernels::cpu
