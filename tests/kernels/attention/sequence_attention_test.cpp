// Attention of packed sequences compared with the textbook formula in fp64, for every type, with
// bias and dropout; the bits of a sequence do not depend on its neighbours; and dropout of packed
// rows.
#include <gtest/gtest.h>

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"
#include "support/packed_sequences.h"

namespace tessera::kernels::testing {
namespace {

using tessera::testing::PackedSequences;
using tessera::testing::SequenceReference;

struct PackedCase {
  std::vector<std::int32_t> lengths;
  std::int64_t heads = 2, head_dim = 8;
  bool bias = false;
  float dropout = 0;
  std::int64_t window = 0;
};

template <class T>
class PackedAttention {
 public:
  using C = decltype(to_compute(T{}));

  explicit PackedAttention(const PackedCase& c) : sequences_(c.lengths, 200) {
    shape = {.starts = sequences_.starts.data(),
             .lengths = sequences_.lengths.data(),
             .sequences = static_cast<std::int64_t>(c.lengths.size()),
             .rows = sequences_.rows,
             .longest = sequences_.longest,
             .heads = c.heads,
             .head_dim = c.head_dim,
             .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
             .relative_bias = nullptr,
             .reach = sequences_.longest + 3,
             .dropout = c.dropout,
             .key = {.seed = 9, .stream = 4},
             .first_sequence = 5,
             .capacity = 200,
             .dtype = dtype_of<T>,
             .window = c.window};
    const std::int64_t n = shape.rows * shape.heads * shape.head_dim;
    q = normals<T>(n, 1);
    k = normals<T>(n, 2);
    v = normals<T>(n, 3);
    dout = normals<T>(n, 4);
    if (c.bias) bias = normals<C>((2 * shape.reach - 1) * shape.heads, 5);
    resize();
  }

  void resize() {
    out.resize(q.size());
    dq.resize(q.size());
    dk.resize(q.size());
    dv.resize(q.size());
    dbias.resize(bias.size());
    log_sum_exp.resize(static_cast<std::size_t>(shape.heads * shape.rows));
  }
  void run() {
    shape.relative_bias = bias.empty() ? nullptr : bias.data();
    cpu::sequence_attention_forward(
        {shape, q.data(), k.data(), v.data(), out.data(), log_sum_exp.data()});
    cpu::sequence_attention_backward({shape, dout.data(), q.data(), k.data(), v.data(), out.data(),
                                      log_sum_exp.data(), dq.data(), dk.data(), dv.data(),
                                      bias.empty() ? nullptr : dbias.data()});
  }
  [[nodiscard]] SequenceReference reference() const {
    return tessera::testing::attend(shape, doubles(q), doubles(k), doubles(v), doubles(dout),
                                    doubles(bias), doubles(out));
  }

  SequenceShape shape{};
  std::vector<T> q, k, v, dout, out, dq, dk, dv;
  std::vector<C> bias, dbias, log_sum_exp;

 private:
  PackedSequences sequences_;
};

const std::vector<PackedCase> packed_cases = {
    {.lengths = {5, 1, 17, 3}},
    {.lengths = {20, 33}, .heads = 3, .head_dim = 32, .bias = true},
    {.lengths = {70, 130}, .heads = 1, .head_dim = 20, .bias = true, .dropout = 0.25f},
    {.lengths = {7}, .heads = 2, .head_dim = 1, .dropout = 0.5f},
    {.lengths = {150, 9, 66}, .heads = 2, .head_dim = 20, .window = 1},
    {.lengths = {150, 9, 66},
     .heads = 2,
     .head_dim = 12,
     .bias = true,
     .dropout = 0.25f,
     .window = 13},
    {.lengths = {130}, .heads = 1, .head_dim = 16, .window = 70},
    {.lengths = {64}, .heads = 2, .head_dim = 12, .window = 4},
};

template <class T>
class SequenceAttentionKernel : public ::testing::Test {};
TYPED_TEST_SUITE(SequenceAttentionKernel, FloatingTypes);

TYPED_TEST(SequenceAttentionKernel, IsTheFormula) {
  for (const PackedCase& c : packed_cases) {
    SCOPED_TRACE(c.lengths.front());
    PackedAttention<TypeParam> attention(c);
    attention.run();
    const SequenceReference wanted = attention.reference();
    expect_close(attention.out, wanted.out, 40, 2);
    expect_close(attention.log_sum_exp, wanted.log_sum_exp, 20, 4);
    expect_close(attention.dq, wanted.dq, 100, 4);
    expect_close(attention.dk, wanted.dk, 100, 4);
    expect_close(attention.dv, wanted.dv, 100, 4);
    expect_close(attention.dbias, wanted.dbias, 200, 8);
  }
}

TYPED_TEST(SequenceAttentionKernel, ThreadsChangeNoBit) {
  for (const PackedCase& c : packed_cases) {
    PackedAttention<TypeParam> one(c), two(c);
    set_compute_threads(1);
    one.run();
    set_compute_threads(2);
    two.run();
    set_compute_threads(1);
    expect_same_bits(one.out, two.out, "out");
    expect_same_bits(one.dq, two.dq, "dq");
    expect_same_bits(one.dk, two.dk, "dk");
    expect_same_bits(one.dbias, two.dbias, "dbias");
  }
}

// The second of three sequences, compared with the same sequence alone.
TYPED_TEST(SequenceAttentionKernel, NeighboursChangeNoBit) {
  const PackedCase together{.lengths = {9, 21, 40}, .bias = true, .dropout = 0.2f};
  PackedAttention<TypeParam> all(together);
  all.run();
  PackedAttention<TypeParam> alone({.lengths = {21}, .bias = true, .dropout = 0.2f});
  alone.shape.first_sequence = all.shape.first_sequence + 1;
  alone.shape.reach = all.shape.reach;
  alone.bias = all.bias;
  const auto part = [&](const std::vector<TypeParam>& whole) {
    const std::int64_t row = all.shape.heads * all.shape.head_dim;
    return std::vector<TypeParam>(whole.begin() + 9 * row, whole.begin() + 30 * row);
  };
  alone.q = part(all.q);
  alone.k = part(all.k);
  alone.v = part(all.v);
  alone.dout = part(all.dout);
  alone.resize();
  alone.run();
  expect_same_bits(alone.out, part(all.out), "out");
  expect_same_bits(alone.dq, part(all.dq), "dq");
  expect_same_bits(alone.dk, part(all.dk), "dk");
  expect_same_bits(alone.dv, part(all.dv), "dv");
}

template <class T>
class SequenceDropoutKernel : public ::testing::Test {};
TYPED_TEST_SUITE(SequenceDropoutKernel, FloatingTypes);

// Each row has the dropout mask that dropout() gives the row at the position of its slot.
TYPED_TEST(SequenceDropoutKernel, DrawsBySlot) {
  for (const std::int64_t dim : {1, 7, 300}) {
    const PackedSequences sequences({3, 1, 6}, 11);
    const auto x = normals<TypeParam>(sequences.rows * dim, 6);
    std::vector<TypeParam> out(x.size()), wanted(x.size());
    const RandomKey key{.seed = 3, .stream = 8};
    cpu::sequence_dropout({x.data(), out.data(), sequences.slots.data(), sequences.rows, dim, 22,
                           key, 0.3f, dtype_of<TypeParam>});
    for (std::int64_t r = 0; r < sequences.rows; ++r) {
      const std::int64_t first = (22 + sequences.slots[static_cast<std::size_t>(r)]) * dim;
      cpu::dropout({x.data() + r * dim, nullptr, wanted.data() + r * dim, dim, first,
                    dtype_of<TypeParam>, key, 0.3f});
    }
    expect_same_bits(out, wanted, "dropout");
    EXPECT_NE(std::memcmp(out.data(), x.data(), x.size() * sizeof(TypeParam)), 0);
  }
}

}  // namespace
}  // namespace tessera::kernels::testing
