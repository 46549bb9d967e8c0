// Attention of a single query, as in text generation, compared with sums in fp64; the blocked path
// is used where the log-sum-exp is requested.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::normals;

struct SingleCase {
  std::int64_t heads, key_heads, head_dim, keys, batch = 1, gap = 0;
  [[nodiscard]] std::int64_t query_row() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t key_row() const { return key_heads * head_dim + gap; }
};

template <class T>
struct SingleOperands {
  explicit SingleOperands(const SingleCase& s)
      : q(normals<T>(s.batch * s.query_row(), 1)),
        k(normals<T>(s.batch * s.keys * s.key_row(), 2)),
        v(normals<T>(s.batch * s.keys * s.key_row(), 3)) {}
  std::vector<T> q, k, v;
};

template <class T>
std::vector<T> attended(const SingleCase& s, const SingleOperands<T>& operands,
                        void* log_sum_exp = nullptr) {
  std::vector<T> out(static_cast<std::size_t>(s.batch * s.query_row()));
  AttentionShape shape{};
  shape.batch = s.batch;
  shape.heads = s.heads;
  shape.key_heads = s.key_heads;
  shape.head_dim = s.head_dim;
  shape.query_length = 1;
  shape.key_length = s.keys;
  shape.q_stride = shape.out_stride = s.query_row();
  shape.k_stride = shape.v_stride = s.key_row();
  shape.scale = 0.25f;
  shape.causal = true;
  shape.dtype = dtype_of<T>;
  cpu::attention_forward(
      {shape, operands.q.data(), operands.k.data(), operands.v.data(), out.data(), log_sum_exp});
  return out;
}

template <class T>
std::vector<double> expected(const SingleCase& s, const SingleOperands<T>& operands) {
  const std::vector<double> q = testing::doubles(operands.q);
  const std::vector<double> k = testing::doubles(operands.k);
  const std::vector<double> v = testing::doubles(operands.v);
  std::vector<double> out(static_cast<std::size_t>(s.batch * s.query_row()));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t row = b * s.query_row() + h * s.head_dim;
      const auto element = [&](std::int64_t key, std::int64_t d) {
        return static_cast<std::size_t>((b * s.keys + key) * s.key_row() +
                                        h / (s.heads / s.key_heads) * s.head_dim + d);
      };
      std::vector<double> weights;
      double sum = 0;
      for (std::int64_t key = 0; key < s.keys; ++key) {
        double score = 0;
        for (std::int64_t d = 0; d < s.head_dim; ++d) {
          score += q[static_cast<std::size_t>(row + d)] * k[element(key, d)];
        }
        weights.push_back(std::exp(0.25 * score));
        sum += weights.back();
      }
      for (std::int64_t key = 0; key < s.keys; ++key) {
        const double weight = weights[static_cast<std::size_t>(key)] / sum;
        for (std::int64_t d = 0; d < s.head_dim; ++d) {
          out[static_cast<std::size_t>(row + d)] += weight * v[element(key, d)];
        }
      }
    }
  }
  return out;
}

template <class T>
class SingleQueryAttention : public ::testing::Test {};
TYPED_TEST_SUITE(SingleQueryAttention, testing::FloatingTypes);

TYPED_TEST(SingleQueryAttention, IsSoftmaxOfScoresTimesValues) {
  testing::for_each_target([] {
    for (const SingleCase& s : {SingleCase{4, 4, 16, 33}, SingleCase{6, 2, 24, 70, 2},
                                SingleCase{3, 1, 7, 1}, SingleCase{2, 2, 64, 300, 1, 5}}) {
      const SingleOperands<TypeParam> operands(s);
      testing::expect_close(attended(s, operands), expected(s, operands), 40, 1);
    }
  });
}

TYPED_TEST(SingleQueryAttention, ThreadsChangeNoBit) {
  const SingleCase s{6, 2, 64, 500};
  const SingleOperands<TypeParam> operands(s);
  testing::expect_thread_invariant([&] { return attended(s, operands); });
}

TEST(SingleQueryAttentionWays, AgreeWithTheBlockedOne) {
  const SingleCase s{6, 3, 32, 90};
  const SingleOperands<float> operands(s);
  std::vector<float> log_sum_exp(static_cast<std::size_t>(s.heads));
  const std::vector<float> blocked = attended(s, operands, log_sum_exp.data());
  testing::expect_close(attended(s, operands), testing::doubles(blocked), 40, 1);
}

}  // namespace
}  // namespace tessera::kernels
