// Blocked attention compared with the textbook formula in double precision: every type, mask, head
// grouping and dropout, gradients included, and the same bits with any number of threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/registry.h"
#include "tests/support/reference.h"

namespace tessera::kernels {
namespace {

using Values = std::vector<double>;

double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::float64:
      return value;
    case DType::float32:
      return static_cast<float>(value);
    case DType::bfloat16:
      return to_float(to_bfloat16(static_cast<float>(value)));
    default:
      return to_float(to_float16(static_cast<float>(value)));
  }
}

std::vector<char> stored(const Values& values, DType dtype) {
  std::vector<char> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    char* const at = bytes.data() + i * size_of(dtype);
    const auto put = [at](auto value) { std::memcpy(at, &value, sizeof(value)); };
    switch (dtype) {
      case DType::float64:
        put(values[i]);
        break;
      case DType::float32:
        put(static_cast<float>(values[i]));
        break;
      case DType::bfloat16:
        put(to_bfloat16(static_cast<float>(values[i])));
        break;
      default:
        put(to_float16(static_cast<float>(values[i])));
    }
  }
  return bytes;
}

Values loaded(const std::vector<char>& bytes, DType dtype) {
  Values values(bytes.size() / size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const char* const at = bytes.data() + i * size_of(dtype);
    const auto take = [at]<class T>(T value) {
      std::memcpy(&value, at, sizeof(value));
      return value;
    };
    switch (dtype) {
      case DType::float64:
        values[i] = take(double{});
        break;
      case DType::float32:
        values[i] = take(float{});
        break;
      case DType::bfloat16:
        values[i] = to_float(take(BFloat16{}));
        break;
      default:
        values[i] = to_float(take(Float16{}));
    }
  }
  return values;
}

struct Case {
  std::int64_t batch = 2, heads = 2, key_heads = 2, head_dim = 32, queries = 20, keys = 20;
  bool causal = false, mask = false;
  float dropout = 0;
  DType dtype = float32;

  [[nodiscard]] std::string text() const {
    return fmt::format("b{} h{}/{} d{} {}x{} causal{} mask{} dropout{} {}", batch, heads, key_heads,
                       head_dim, queries, keys, causal, mask, dropout, name_of(dtype));
  }
};

struct Results {
  Values out, log_sum_exp, dq, dk, dv;
};

// Inputs, with padded rows, and the formula.
class Problem {
 public:
  explicit Problem(const Case& c) : c_(c) {
    q = random(c.batch * c.queries * q_stride(), 1);
    k = random(c.batch * c.keys * k_stride(), 2);
    v = random(c.batch * c.keys * v_stride(), 3);
    dout = random(c.batch * c.queries * out_stride(), 4);
    if (c.mask) {
      std::mt19937 generator(5);
      for (std::int64_t i = 0; i < c.batch * c.keys; ++i) {
        key_mask.push_back(generator() % 4 == 0 || i < c.keys / 3 ? 0 : 1);
      }
    }
  }

  [[nodiscard]] std::int64_t q_stride() const { return c_.heads * c_.head_dim + 8; }
  [[nodiscard]] std::int64_t k_stride() const { return c_.key_heads * c_.head_dim + 16; }
  [[nodiscard]] std::int64_t v_stride() const { return c_.key_heads * c_.head_dim; }
  [[nodiscard]] std::int64_t out_stride() const { return c_.heads * c_.head_dim + 4; }

  [[nodiscard]] AttentionShape shape() const {
    return {.batch = c_.batch,
            .heads = c_.heads,
            .key_heads = c_.key_heads,
            .head_dim = c_.head_dim,
            .query_length = c_.queries,
            .key_length = c_.keys,
            .q_stride = q_stride(),
            .k_stride = k_stride(),
            .v_stride = v_stride(),
            .out_stride = out_stride(),
            .scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim)),
            .causal = c_.causal,
            .key_mask = key_mask.empty() ? nullptr : key_mask.data(),
            .dropout = c_.dropout,
            .key = {.seed = 77, .stream = 5},
            .first_sample = 3,
            .dtype = c_.dtype};
  }

  // The kernels' results.
  [[nodiscard]] Results run() const {
    const DType statistic = c_.dtype == float64 ? float64 : float32;
    const auto bq = stored(q, c_.dtype), bk = stored(k, c_.dtype), bv = stored(v, c_.dtype);
    const auto bdout = stored(dout, c_.dtype);
    auto out = stored(Values(dout.size(), kUntouched), c_.dtype);
    auto lse =
        stored(Values(static_cast<std::size_t>(c_.batch * c_.heads * c_.queries)), statistic);
    cpu::attention_forward({.shape = shape(),
                            .q = bq.data(),
                            .k = bk.data(),
                            .v = bv.data(),
                            .out = out.data(),
                            .log_sum_exp = lse.data()});
    auto dq = stored(Values(q.size(), kUntouched), c_.dtype);
    auto dk = stored(Values(k.size(), kUntouched), c_.dtype);
    auto dv = stored(Values(v.size(), kUntouched), c_.dtype);
    cpu::attention_backward({.shape = shape(),
                             .dout = bdout.data(),
                             .q = bq.data(),
                             .k = bk.data(),
                             .v = bv.data(),
                             .out = out.data(),
                             .log_sum_exp = lse.data(),
                             .dq = dq.data(),
                             .dk = dk.data(),
                             .dv = dv.data()});
    return {loaded(out, c_.dtype), loaded(lse, statistic), loaded(dq, c_.dtype),
            loaded(dk, c_.dtype), loaded(dv, c_.dtype)};
  }

  // The formula, rounding probabilities, their gradients and the results to `precision`.
  [[nodiscard]] Results formula(DType precision) const {
    Results r{Values(dout.size(), kUntouched), Values(), Values(q.size(), kUntouched),
              Values(k.size(), kUntouched), Values(v.size(), kUntouched)};
    r.log_sum_exp.resize(static_cast<std::size_t>(c_.batch * c_.heads * c_.queries));
    Values dk(k.size()), dv(v.size());
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      for (std::int64_t h = 0; h < c_.heads; ++h) head(b, h, precision, r, dk, dv);
    }
    const auto finish = [&](const Values& sums, Values& out, std::int64_t stride) {
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const auto column = static_cast<std::int64_t>(i) % stride;
        if (column < c_.key_heads * c_.head_dim) out[i] = rounded(sums[i], precision);
      }
    };
    finish(dk, r.dk, k_stride());
    finish(dv, r.dv, v_stride());
    return r;
  }

  static constexpr double kUntouched = 9;  // exact in every type

  Values q, k, v, dout;
  std::vector<std::uint8_t> key_mask;

 private:
  [[nodiscard]] Values random(std::int64_t count, unsigned seed) const {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    Values values(static_cast<std::size_t>(count));
    for (double& value : values) value = rounded(normal(generator), c_.dtype);
    return values;
  }

  [[nodiscard]] bool sees(std::int64_t b, std::int64_t i, std::int64_t j) const {
    if (c_.causal && j > i + c_.keys - c_.queries) return false;
    return key_mask.empty() || key_mask[static_cast<std::size_t>(b * c_.keys + j)] != 0;
  }

  // 0 for a dropped probability, else 1 / (1 - dropout).
  [[nodiscard]] double kept(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (c_.dropout == 0) return 1;
    const auto element =
        static_cast<std::uint64_t>((((3 + b) * c_.heads + h) * c_.queries + i) * c_.keys + j);
    const std::uint32_t draw = philox({.seed = 77, .stream = 5}, element / 4)[element % 4];
    return draw >= static_cast<std::uint32_t>(c_.dropout * 0x1p32) ? 1 / (1.0 - c_.dropout) : 0;
  }

  // Computes head h of sample b, forward and backward.
  void head(std::int64_t b, std::int64_t h, DType precision, Results& r, Values& dk,
            Values& dv) const {
    const std::int64_t key_head = h / (c_.heads / c_.key_heads);
    const auto of_queries = [&](auto& values, std::int64_t stride) {
      return reference::Strided{values.data() + b * c_.queries * stride + h * c_.head_dim,
                                c_.queries, c_.head_dim, stride};
    };
    const auto of_keys = [&](auto& values, std::int64_t stride) {
      return reference::Strided{values.data() + b * c_.keys * stride + key_head * c_.head_dim,
                                c_.keys, c_.head_dim, stride};
    };
    reference::attention({.q = of_queries(q, q_stride()),
                          .k = of_keys(k, k_stride()),
                          .v = of_keys(v, v_stride()),
                          .dout = of_queries(dout, out_stride()),
                          .scale = shape().scale,
                          .sees = [&](std::int64_t i, std::int64_t j) { return sees(b, i, j); },
                          .kept = [&](std::int64_t i, std::int64_t j) { return kept(b, h, i, j); },
                          .rounded = [&](double value) { return rounded(value, precision); }},
                         {.out = of_queries(r.out, out_stride()),
                          .dq = of_queries(r.dq, q_stride()),
                          .dk = of_keys(dk, k_stride()),
                          .dv = of_keys(dv, v_stride()),
                          .log_sum_exp = r.log_sum_exp.data() + (b * c_.heads + h) * c_.queries});
  }

  Case c_;
};

double largest_difference(const Values& x, const Values& y) {
  EXPECT_EQ(x.size(), y.size());
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i]) continue;  // infinities as well
    const double difference = std::abs(x[i] - y[i]);
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

// The error is at most twice that of the formula with the rounding of the type.
void expect_right(const Case& c) {
  SCOPED_TRACE(c.text());
  const Problem problem(c);
  const Results exact = problem.formula(float64), plain = problem.formula(c.dtype);
  const Results got = problem.run();
  const double tiny = c.dtype == float64 ? 1e-12 : 2e-5;
  const auto compare = [&](const char* name, Values Results::*member) {
    EXPECT_LE(largest_difference(got.*member, exact.*member),
              2 * largest_difference(plain.*member, exact.*member) + tiny)
        << name;
  };
  compare("out", &Results::out);
  compare("log_sum_exp", &Results::log_sum_exp);
  compare("dq", &Results::dq);
  compare("dk", &Results::dk);
  compare("dv", &Results::dv);
}

// One thread unless a test says otherwise: on a busy machine two threads that wait for each other
// are slow.
class AttentionTest : public ::testing::Test {
 protected:
  void SetUp() override { set_compute_threads(1); }
};

TEST_F(AttentionTest, EveryTypeAndOption) {
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    for (int options = 0; options < 8; ++options) {
      expect_right({.heads = 4,
                    .key_heads = 2,
                    .queries = 37,
                    .keys = 37,
                    .causal = (options & 1) != 0,
                    .mask = (options & 2) != 0,
                    .dropout = (options & 4) != 0 ? 0.3f : 0.0f,
                    .dtype = dtype});
    }
  }
}

TEST_F(AttentionTest, LengthsOnBothSidesOfTheTiles) {
  for (const DType dtype : {float32, bfloat16}) {
    for (const auto& [queries, keys] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1},
                                                            {1, 70},
                                                            {70, 1},
                                                            {3, 17},
                                                            {64, 64},
                                                            {65, 63},
                                                            {128, 129},
                                                            {5, 530},
                                                            {130, 260}}) {
      for (const bool causal : {false, true}) {
        expect_right(
            {.batch = 1, .queries = queries, .keys = keys, .causal = causal, .dtype = dtype});
      }
    }
  }
}

TEST_F(AttentionTest, ManyTilesOfKeys) {
  for (const DType dtype : {float32, bfloat16, float64}) {
    expect_right({.batch = 1,
                  .heads = 1,
                  .key_heads = 1,
                  .queries = 70,
                  .keys = 1100,
                  .causal = true,
                  .mask = true,
                  .dropout = 0.1f,
                  .dtype = dtype});
  }
}

TEST_F(AttentionTest, HeadSizes) {
  for (const std::int64_t dim : {8, 24, 40, 64, 80, 128, 256}) {
    for (const DType dtype : {float32, bfloat16, float16}) {
      expect_right(
          {.batch = 1, .head_dim = dim, .queries = 33, .keys = 33, .causal = true, .dtype = dtype});
    }
  }
}

TEST_F(AttentionTest, RowsThatSeeNothingGiveZeros) {
  const Case c{
      .batch = 1, .queries = 90, .keys = 20, .causal = true};  // the first 70 queries see no key
  const Problem problem(c);
  const Results got = problem.run();
  for (std::int64_t i = 0; i < 70; ++i) {
    EXPECT_EQ(got.log_sum_exp[static_cast<std::size_t>(i)],
              -std::numeric_limits<double>::infinity());
    EXPECT_EQ(got.out[static_cast<std::size_t>(i * problem.out_stride())], 0);
    EXPECT_EQ(got.dq[static_cast<std::size_t>(i * problem.q_stride())], 0);
  }
  for (const double value : got.dk) EXPECT_TRUE(std::isfinite(value));
  expect_right(c);
}

TEST_F(AttentionTest, NotANumberIsNotHidden) {
  Problem problem({.batch = 1, .heads = 1, .key_heads = 1, .queries = 5, .keys = 5});
  problem.q[0] = std::numeric_limits<double>::quiet_NaN();
  const Results got = problem.run();
  EXPECT_TRUE(std::isnan(got.out[0]));
  EXPECT_TRUE(std::isnan(got.dk[0]));
  EXPECT_FALSE(std::isnan(got.out[static_cast<std::size_t>(problem.out_stride())]));
}

TEST_F(AttentionTest, GradientsAreTheForwardsSlopes) {
  const Case c{.batch = 1,
               .heads = 2,
               .key_heads = 1,
               .head_dim = 8,
               .queries = 5,
               .keys = 7,
               .causal = true,
               .mask = false,
               .dropout = 0.25f,
               .dtype = float64};
  Problem problem(c);
  const Results at = problem.run();
  const auto loss = [&] {
    const Values out = problem.run().out;
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i) % problem.out_stride();
      if (column < c.heads * c.head_dim) sum += out[i] * problem.dout[i];
    }
    return sum;
  };
  const auto check = [&](Values& input, const Values& gradient) {
    for (std::size_t i = 0; i < input.size(); ++i) {
      if (gradient[i] == Problem::kUntouched) continue;
      const double before = input[i], step = 1e-5;
      input[i] = before + step;
      const double above = loss();
      input[i] = before - step;
      const double below = loss();
      input[i] = before;
      EXPECT_NEAR((above - below) / (2 * step), gradient[i], 1e-8);
    }
  };
  check(problem.q, at.dq);
  check(problem.k, at.dk);
  check(problem.v, at.dv);
}

TEST_F(AttentionTest, ThreadsDoNotChangeABit) {
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    const Problem problem({.batch = 3,
                           .heads = 4,
                           .key_heads = 2,
                           .queries = 100,
                           .keys = 100,
                           .causal = true,
                           .mask = true,
                           .dropout = 0.2f,
                           .dtype = dtype});
    set_compute_threads(1);
    const Results one = problem.run();
    set_compute_threads(2);
    const Results two = problem.run();
    EXPECT_EQ(one.out, two.out);
    EXPECT_EQ(one.dq, two.dq);
    EXPECT_EQ(one.dk, two.dk);
    EXPECT_EQ(one.dv, two.dv);
  }
}

TEST_F(AttentionTest, MisuseNamesTheShape) {
  const Problem problem({.heads = 3, .key_heads = 2});
  try {
    cpu::attention_forward({.shape = problem.shape(),
                            .q = nullptr,
                            .k = nullptr,
                            .v = nullptr,
                            .out = nullptr,
                            .log_sum_exp = nullptr});
    FAIL() << "accepted 3 heads over 2 key heads";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("heads 3, key heads 2"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera::kernels
