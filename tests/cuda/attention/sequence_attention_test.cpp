// Attention, dropout and pooling of packed sequences on the GPU, compared with the CPU's fp64.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/compared_array.h"
#include "support/packed_sequences.h"

namespace tessera::testing {
namespace {

using kernels::PoolingMode;
using kernels::SequenceShape;

struct PackedCase {
  std::vector<std::int32_t> lengths;
  std::int64_t heads, head_dim;
  bool bias;
  float dropout;
  std::int64_t window = 0;
};

// Sequences within a tile and over several, heads of one panel and of several, draws that straddle
// blocks.
const std::vector<PackedCase> packed_cases = {
    {{5, 1, 33}, 2, 8, false, 0}, {{70, 3}, 2, 32, true, 0},     {{40, 9}, 1, 70, true, 0.25f},
    {{7}, 3, 5, false, 0.5f},     {{80, 9}, 2, 20, false, 0, 1}, {{40, 70}, 1, 8, true, 0.25f, 13}};

std::vector<double> as_doubles(const std::vector<std::int32_t>& values) {
  return {values.begin(), values.end()};
}

// The addresses of sequences, on host and device.
class Places {
 public:
  explicit Places(const PackedSequences& s)
      : host_{s.starts, s.lengths, s.slots},
        starts_(as_doubles(s.starts), int32),
        lengths_(as_doubles(s.lengths), int32),
        slots_(as_doubles(s.slots), int32) {}
  [[nodiscard]] const std::int32_t* starts(Side side) const { return at(side, starts_, 0); }
  [[nodiscard]] const std::int32_t* lengths(Side side) const { return at(side, lengths_, 1); }
  [[nodiscard]] const std::int32_t* slots(Side side) const { return at(side, slots_, 2); }

 private:
  [[nodiscard]] const std::int32_t* at(Side side, const DeviceMemory& memory,
                                       std::size_t which) const {
    return side == Side::device ? memory.as<std::int32_t>() : host_[which].data();
  }
  std::vector<std::vector<std::int32_t>> host_;
  DeviceMemory starts_, lengths_, slots_;
};

void check_attention(const PackedCase& c, DType dtype) {
  SCOPED_TRACE(fmt::format("{} of {} {}", c.lengths.front(), c.head_dim, name_of(dtype)));
  const PackedSequences s(c.lengths, 90);
  const Places places(s);
  const std::int64_t reach = s.longest + 5, n = s.rows * c.heads * c.head_dim;
  const auto size = static_cast<std::size_t>(n);
  const DType statistic = statistic_of(dtype);
  ComparedArray q(random_values(size, dtype, 1), dtype), k(random_values(size, dtype, 2), dtype),
      v(random_values(size, dtype, 3), dtype), dout(random_values(size, dtype, 4), dtype);
  const auto biases = static_cast<std::size_t>((2 * reach - 1) * c.heads);
  ComparedArray bias(random_values(biases, statistic, 5), statistic);
  ComparedArray out(n, dtype), dq(n, dtype), dk(n, dtype), dv(n, dtype);
  ComparedArray log_sum_exp(s.rows * c.heads, statistic),
      dbias(static_cast<std::int64_t>(biases), statistic);
  const auto shape = [&](Side side, DType type) -> SequenceShape {
    return {places.starts(side),
            places.lengths(side),
            static_cast<std::int64_t>(c.lengths.size()),
            s.rows,
            s.longest,
            c.heads,
            c.head_dim,
            0.3f,
            c.bias ? bias.at(side) : nullptr,
            reach,
            c.dropout,
            {.seed = 4, .stream = 7},
            2,
            90,
            type,
            c.window};
  };
  TestContext context;
  run_on_all_sides<kernels::SequenceAttentionForward>(
      context, kernels::cuda::sequence_attention_forward, kernels::cpu::sequence_attention_forward,
      dtype, [&](Side side, DType type) -> kernels::SequenceAttentionForward {
        return {shape(side, type), q.at(side),   k.at(side),
                v.at(side),        out.at(side), log_sum_exp.at(side)};
      });
  out.expect_within_bound("sequence_attention_forward", "out");
  log_sum_exp.expect_within_bound("sequence_attention_forward", "log_sum_exp");
  run_on_all_sides<kernels::SequenceAttentionBackward>(
      context, kernels::cuda::sequence_attention_backward,
      kernels::cpu::sequence_attention_backward, dtype,
      [&](Side side, DType type) -> kernels::SequenceAttentionBackward {
        return {shape(side, type),
                dout.at(side),
                q.at(side),
                k.at(side),
                v.at(side),
                out.at(side),
                log_sum_exp.at(side),
                dq.at(side),
                dk.at(side),
                dv.at(side),
                c.bias ? dbias.at(side) : nullptr};
      });
  dq.expect_within_bound("sequence_attention_backward", "dq");
  dk.expect_within_bound("sequence_attention_backward", "dk");
  dv.expect_within_bound("sequence_attention_backward", "dv");
  if (c.bias) dbias.expect_within_bound("sequence_attention_backward", "relative_bias_gradient");
}

TEST(CudaSequences, Attention) {
  for (const PackedCase& c : packed_cases) {
    for (const DType dtype : floating_dtypes) check_attention(c, dtype);
  }
}

TEST(CudaSequences, DropoutHasTheCpusBits) {
  const PackedSequences s({3, 1, 6}, 11);
  const Places places(s);
  for (const DType dtype : floating_dtypes) {
    for (const std::int64_t dim : {1, 7, 64}) {
      ComparedArray x(random_values(static_cast<std::size_t>(s.rows * dim), dtype, 6), dtype);
      ComparedArray out(s.rows * dim, dtype);
      TestContext context;
      run_on_all_sides<kernels::SequenceDropout>(
          context, kernels::cuda::sequence_dropout, kernels::cpu::sequence_dropout, dtype,
          [&](Side side, DType type) -> kernels::SequenceDropout {
            return {x.at(side), out.at(side), places.slots(side),       s.rows,
                    dim,        33,           {.seed = 4, .stream = 7}, 0.3f,
                    type};
          });
      out.expect_same("sequence_dropout", "out");
    }
  }
}

void check_pooling(PoolingMode mode, std::int64_t dim, DType dtype) {
  const PackedSequences s({3, 1, 20}, 20);
  const Places places(s);
  const DType statistic = statistic_of(dtype);
  const std::int64_t stride = dim + 3;
  ComparedArray x(random_values(static_cast<std::size_t>(s.rows * dim), dtype, 1), dtype);
  ComparedArray dout(random_values(static_cast<std::size_t>(3 * stride), statistic, 2), statistic);
  ComparedArray out(3 * stride, statistic), dx(s.rows * dim, dtype);
  TestContext context;
  run_on_all_sides<kernels::PoolForward>(context, kernels::cuda::pool_forward,
                                         kernels::cpu::pool_forward, dtype,
                                         [&](Side side, DType type) -> kernels::PoolForward {
                                           return {x.at(side),
                                                   places.starts(side),
                                                   places.lengths(side),
                                                   out.at(side),
                                                   3,
                                                   s.rows,
                                                   dim,
                                                   stride,
                                                   mode,
                                                   type};
                                         });
  out.expect_within_bound("pool_forward", "out");
  for (const bool accumulate : {false, true}) {
    run_on_all_sides<kernels::PoolBackward>(context, kernels::cuda::pool_backward,
                                            kernels::cpu::pool_backward, dtype,
                                            [&](Side side, DType type) -> kernels::PoolBackward {
                                              return {dout.at(side),
                                                      x.at(side),
                                                      places.starts(side),
                                                      places.lengths(side),
                                                      dx.at(side),
                                                      3,
                                                      s.rows,
                                                      dim,
                                                      stride,
                                                      mode,
                                                      type,
                                                      accumulate};
                                            });
  }
  dx.expect_within_bound("pool_backward", "dx");
}

TEST(CudaSequences, Pooling) {
  for (const PoolingMode mode :
       {PoolingMode::mean, PoolingMode::cls, PoolingMode::max, PoolingMode::mean_sqrt_length}) {
    for (const std::int64_t dim : {7, 200}) {
      for (const DType dtype : floating_dtypes) check_pooling(mode, dim, dtype);
    }
  }
}

TEST(CudaSequences, NormalizedRows) {
  for (const DType dtype : floating_dtypes) {
    for (const double eps : {1e-12, 1000.0}) {
      const std::int64_t rows = 3, dim = 200;
      const auto size = static_cast<std::size_t>(rows * dim);
      ComparedArray x(random_values(size, dtype, 1), dtype),
          dout(random_values(size, dtype, 2), dtype);
      ComparedArray out(rows * dim, dtype), dx(rows * dim, dtype);
      ComparedArray norms(rows, statistic_of(dtype));
      TestContext context;
      run_on_all_sides<kernels::NormalizeRows>(
          context, kernels::cuda::normalize_rows, kernels::cpu::normalize_rows, dtype,
          [&](Side side, DType type) -> kernels::NormalizeRows {
            return {x.at(side), out.at(side), norms.at(side), rows, dim, eps, type};
          });
      run_on_all_sides<kernels::NormalizeRowsBackward>(
          context, kernels::cuda::normalize_rows_backward, kernels::cpu::normalize_rows_backward,
          dtype, [&](Side side, DType type) -> kernels::NormalizeRowsBackward {
            return {dout.at(side), x.at(side), norms.at(side), dx.at(side), rows, dim, eps, type};
          });
      out.expect_within_bound("normalize_rows", "out");
      dx.expect_within_bound("normalize_rows_backward", "dx");
    }
  }
}

}  // namespace
}  // namespace tessera::testing
