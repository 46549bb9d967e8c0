// The gradient of attention's bias. One task owns some queries of one matrix of the bias and sums
// over the samples and heads that share it, in ascending order. It computes the scores and the
// gradients of the probabilities again: the tasks of the other gradients own other sums.
#include <algorithm>

#include "base/parallel.h"
#include "kernels/cpu/attention/attention_gradients.h"

namespace tessera::kernels::cpu {
namespace {

struct BiasScratch {
  ScratchBuffer q, k, v, dout, key_bias, scores, gradients, delta, log_sum_exp;
};

// The rows [first, first + rows) of the matrix of one sample and head of the bias.
template <class C>
class BiasRows {
 public:
  BiasRows(const AttentionPlan& plan, const AttentionBackward& arguments, BiasScratch& scratch,
           std::int64_t first, std::int64_t rows)
      : plan_(plan), arguments_(arguments), scratch_(scratch), first_(first), rows_(rows) {
    scores_ = scratch.scores.get<C>(kQueryRows * kTileColumns);
    gradients_ = scratch.gradients.get<C>(kQueryRows * kTileColumns);
    delta_ = scratch.delta.get<C>(kQueryRows);
    log_sum_exp_ = scratch.log_sum_exp.get<C>(kQueryRows);
  }

  void run(std::int64_t bias_sample, std::int64_t bias_head) {
    const AttentionShape& s = plan_.shape;
    sums_ = static_cast<C*>(arguments_.bias_gradient) + bias_sample * s.bias_batch_stride +
            bias_head * s.bias_head_stride + first_ * s.key_length;
    std::fill_n(sums_, rows_ * s.key_length, C{0});
    const bool one_sample = s.bias_batch_stride != 0, one_head = s.bias_head_stride != 0;
    const std::int64_t last_sample = one_sample ? bias_sample + 1 : s.batch;
    const std::int64_t last_head = one_head ? bias_head + 1 : s.heads;
    for (std::int64_t sample = bias_sample; sample < last_sample; ++sample) {
      key_bias_ = plan_.key_bias(sample, scratch_.key_bias);
      const QueryBlock queries = plan_.block(sample, first_, rows_);
      for (std::int64_t head = bias_head; head < last_head; ++head) add_head(queries, head);
    }
  }

 private:
  // The block's rows of a tensor, as operands.
  HeadRows block_of(const void* base, std::int64_t stride, std::int64_t sample, std::int64_t head,
                    std::int64_t width, ScratchBuffer& buffer) const {
    HeadRows rows = plan_.queries(base, stride, sample, head, width);
    rows.data = element(rows.data, plan_.shape.dtype, first_ * stride);
    return plan_.widened(rows, rows_, buffer);
  }

  void add_head(const QueryBlock& queries, std::int64_t head) {
    const AttentionShape& s = plan_.shape;
    const std::int64_t sample = queries.batch, key_head = head / plan_.group;
    const HeadRows q = block_of(arguments_.q, s.q_stride, sample, head, s.head_dim, scratch_.q);
    const HeadRows dout =
        block_of(arguments_.dout, s.out_stride, sample, head, plan_.value_dim, scratch_.dout);
    const HeadRows k = plan_.keys(arguments_.k, s.k_stride, sample, key_head, s.head_dim);
    const HeadRows v = plan_.keys(arguments_.v, s.v_stride, sample, key_head, plan_.value_dim);
    load_row_statistics(plan_, arguments_, queries, head, delta_, log_sum_exp_);
    for (std::int64_t key = queries.first_key; key < queries.last_key; key += kTileColumns) {
      const std::int64_t columns = std::min(kTileColumns, queries.last_key - key);
      const auto tile_of = [&](HeadRows rows, ScratchBuffer& buffer) {
        rows.data = element(rows.data, s.dtype, key * rows.stride);
        return plan_.widened(rows, columns, buffer);
      };
      multiply(plan_, {.a = q,
                       .b = tile_of(k, scratch_.k),
                       .c = scores_,
                       .m = rows_,
                       .n = columns,
                       .k = s.head_dim,
                       .transpose_b = true});
      multiply(plan_, {.a = dout,
                       .b = tile_of(v, scratch_.v),
                       .c = gradients_,
                       .m = rows_,
                       .n = columns,
                       .k = plan_.value_dim,
                       .transpose_b = true});
      add_bias_gradient_tile(plan_.tile(queries, head, key, columns, key_bias_), plan_.operand,
                             scores_, gradients_, log_sum_exp_, delta_, sums_ + key);
    }
  }

  const AttentionPlan& plan_;
  const AttentionBackward& arguments_;
  BiasScratch& scratch_;
  std::int64_t first_, rows_;
  const void* key_bias_ = nullptr;
  C* sums_ = nullptr;
  C* scores_ = nullptr;
  C* gradients_ = nullptr;
  C* delta_ = nullptr;
  C* log_sum_exp_ = nullptr;
};

}  // namespace

void make_bias_gradient(const AttentionPlan& plan, const AttentionBackward& arguments) {
  const AttentionShape& s = plan.shape;
  const std::int64_t blocks = (s.query_length + kQueryRows - 1) / kQueryRows;
  const std::int64_t heads = bias_heads(s);
  parallel_for(0, bias_samples(s) * heads * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    static thread_local BiasScratch scratch;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % blocks * kQueryRows, matrix = i / blocks;
      const std::int64_t rows = std::min(kQueryRows, s.query_length - first);
      if (plan.compute == float64) {
        BiasRows<double>(plan, arguments, scratch, first, rows).run(matrix / heads, matrix % heads);
      } else {
        BiasRows<float>(plan, arguments, scratch, first, rows).run(matrix / heads, matrix % heads);
      }
    }
  });
}

}  // namespace tessera::kernels::cpu
