// Attention problems for tests of the CPU's kernels: inputs, the kernels' results, and the textbook
// formula in double precision with which they are compared.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/low_precision.h"
#include "kernels/registry.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/support/reference.h"

namespace tessera::kernels::attention_problem {

using Values = std::vector<double>;

inline double rounded(double value, DType dtype) {
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

inline std::vector<char> stored(const Values& values, DType dtype) {
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

inline Values loaded(const std::vector<char>& bytes, DType dtype) {
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
  std::int64_t window = 0;
  std::int64_t document = 0;  // the length of the first document; each next one has one more
  float soft_cap = 0;
  std::int64_t value_dim = 0;  // 0: head_dim
  // The samples and heads of the bias, each 1 or all; 0: none. Its first row hides every key, and
  // so does an element here and there.
  std::int64_t bias_samples = 0, bias_heads = 0;

  [[nodiscard]] std::int64_t value_size() const { return value_dim == 0 ? head_dim : value_dim; }
  [[nodiscard]] std::string text() const {
    return fmt::format(
        "b{} h{}/{} d{}/{} {}x{} causal{} mask{} dropout{} {} window{} document{} cap{} bias{}x{}",
        batch, heads, key_heads, head_dim, value_size(), queries, keys, causal, mask, dropout,
        name_of(dtype), window, document, soft_cap, bias_samples, bias_heads);
  }
};

struct Results {
  Values out, log_sum_exp, dq, dk, dv, dbias;
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
    if (c.document > 0) make_documents();
    make_bias();
  }

  [[nodiscard]] std::int64_t q_stride() const { return c_.heads * c_.head_dim + 8; }
  [[nodiscard]] std::int64_t k_stride() const { return c_.key_heads * c_.head_dim + 16; }
  [[nodiscard]] std::int64_t v_stride() const { return c_.key_heads * c_.value_size(); }
  [[nodiscard]] std::int64_t out_stride() const { return c_.heads * c_.value_size() + 4; }

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
            .dtype = c_.dtype,
            .window = c_.window,
            .document_starts = document_starts.empty() ? nullptr : document_starts.data(),
            .soft_cap = c_.soft_cap,
            .value_dim = c_.value_dim,
            .bias_batch_stride = c_.bias_samples > 1 ? c_.bias_heads * c_.queries * c_.keys : 0,
            .bias_head_stride = c_.bias_heads > 1 ? c_.queries * c_.keys : 0};
  }

  // The kernels' results.
  [[nodiscard]] Results run() const {
    const DType statistic = c_.dtype == float64 ? float64 : float32;
    const auto bq = stored(q, c_.dtype), bk = stored(k, c_.dtype), bv = stored(v, c_.dtype);
    const auto bdout = stored(dout, c_.dtype);
    auto out = stored(Values(dout.size(), kUntouched), c_.dtype);
    auto lse =
        stored(Values(static_cast<std::size_t>(c_.batch * c_.heads * c_.queries)), statistic);
    const auto bbias = stored(bias, statistic);
    AttentionShape with_bias = shape();
    if (!bias.empty()) with_bias.bias = bbias.data();
    cpu::attention_forward({.shape = with_bias,
                            .q = bq.data(),
                            .k = bk.data(),
                            .v = bv.data(),
                            .out = out.data(),
                            .log_sum_exp = lse.data()});
    auto dq = stored(Values(q.size(), kUntouched), c_.dtype);
    auto dk = stored(Values(k.size(), kUntouched), c_.dtype);
    auto dv = stored(Values(v.size(), kUntouched), c_.dtype);
    auto dbias = stored(Values(bias.size(), kUntouched), statistic);
    cpu::attention_backward({.shape = with_bias,
                             .dout = bdout.data(),
                             .q = bq.data(),
                             .k = bk.data(),
                             .v = bv.data(),
                             .out = out.data(),
                             .log_sum_exp = lse.data(),
                             .dq = dq.data(),
                             .dk = dk.data(),
                             .dv = dv.data(),
                             .bias_gradient = bias.empty() ? nullptr : dbias.data()});
    return {loaded(out, c_.dtype), loaded(lse, statistic), loaded(dq, c_.dtype),
            loaded(dk, c_.dtype),  loaded(dv, c_.dtype),   loaded(dbias, statistic)};
  }

  // The formula, rounding probabilities, their gradients and the results to `precision`.
  [[nodiscard]] Results formula(DType precision) const {
    Results r{Values(dout.size(), kUntouched), Values(),
              Values(q.size(), kUntouched),    Values(k.size(), kUntouched),
              Values(v.size(), kUntouched),    Values(bias.size())};
    r.log_sum_exp.resize(static_cast<std::size_t>(c_.batch * c_.heads * c_.queries));
    Values dk(k.size()), dv(v.size());
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      for (std::int64_t h = 0; h < c_.heads; ++h) head(b, h, precision, r, dk, dv);
    }
    const auto finish = [&](const Values& sums, Values& out, std::int64_t stride,
                            std::int64_t width) {
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const auto column = static_cast<std::int64_t>(i) % stride;
        if (column < c_.key_heads * width) out[i] = rounded(sums[i], precision);
      }
    };
    finish(dk, r.dk, k_stride(), c_.head_dim);
    finish(dv, r.dv, v_stride(), c_.value_size());
    return r;
  }

  static constexpr double kUntouched = 9;  // exact in every type

  Values q, k, v, dout, bias;
  std::vector<std::uint8_t> key_mask;
  std::vector<std::int32_t> document_starts;

 private:
  // Documents of sample b begin b positions late, after a short one.
  void make_documents() {
    for (std::int64_t b = 0; b < c_.batch; ++b) {
      std::int64_t start = 0, end = c_.document - b, length = c_.document;
      for (std::int64_t i = 0; i < c_.keys; ++i) {
        if (i == end) {
          start = end;
          end += ++length;
        }
        document_starts.push_back(static_cast<std::int32_t>(start));
      }
    }
  }

  void make_bias() {
    std::mt19937 generator(6);
    std::normal_distribution<float> normal;
    const std::int64_t rows = c_.bias_samples * c_.bias_heads * c_.queries;
    for (std::int64_t i = 0; i < rows * c_.keys; ++i) {
      const bool hidden = i < c_.keys || generator() % 16 == 0;
      bias.push_back(hidden ? -std::numeric_limits<double>::infinity() : normal(generator));
    }
  }
  [[nodiscard]] std::size_t bias_element(std::int64_t b, std::int64_t h, std::int64_t i,
                                         std::int64_t j) const {
    const std::int64_t sample = c_.bias_samples > 1 ? b : 0, head = c_.bias_heads > 1 ? h : 0;
    return static_cast<std::size_t>(((sample * c_.bias_heads + head) * c_.queries + i) * c_.keys +
                                    j);
  }

  [[nodiscard]] Values random(std::int64_t count, unsigned seed) const {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    Values values(static_cast<std::size_t>(count));
    for (double& value : values) value = rounded(normal(generator), c_.dtype);
    return values;
  }

  [[nodiscard]] bool sees(std::int64_t b, std::int64_t i, std::int64_t j) const {
    const std::int64_t position = i + c_.keys - c_.queries;
    if (c_.causal && j > position) return false;
    if (c_.window > 0 && j <= position - c_.window) return false;
    if (c_.document > 0 && j < document_starts[static_cast<std::size_t>(b * c_.keys + position)]) {
      return false;
    }
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
    const auto of_queries = [&](auto& values, std::int64_t stride, std::int64_t width) {
      return reference::Strided{values.data() + b * c_.queries * stride + h * width, c_.queries,
                                width, stride};
    };
    const auto of_keys = [&](auto& values, std::int64_t stride, std::int64_t width) {
      return reference::Strided{values.data() + b * c_.keys * stride + key_head * width, c_.keys,
                                width, stride};
    };
    const std::int64_t dim = c_.head_dim, value_dim = c_.value_size();
    std::function<double(std::int64_t, std::int64_t)> bias_of;
    std::function<void(std::int64_t, std::int64_t, double)> add_bias_gradient;
    if (!bias.empty()) {
      bias_of = [&](std::int64_t i, std::int64_t j) { return bias[bias_element(b, h, i, j)]; };
      add_bias_gradient = [&](std::int64_t i, std::int64_t j, double gradient) {
        r.dbias[bias_element(b, h, i, j)] += gradient;
      };
    }
    reference::attention({.q = of_queries(q, q_stride(), dim),
                          .k = of_keys(k, k_stride(), dim),
                          .v = of_keys(v, v_stride(), value_dim),
                          .dout = of_queries(dout, out_stride(), value_dim),
                          .scale = shape().scale,
                          .sees = [&](std::int64_t i, std::int64_t j) { return sees(b, i, j); },
                          .kept = [&](std::int64_t i, std::int64_t j) { return kept(b, h, i, j); },
                          .rounded = [&](double value) { return rounded(value, precision); },
                          .soft_cap = c_.soft_cap,
                          .bias = bias_of},
                         {.out = of_queries(r.out, out_stride(), value_dim),
                          .dq = of_queries(r.dq, q_stride(), dim),
                          .dk = of_keys(dk, k_stride(), dim),
                          .dv = of_keys(dv, v_stride(), value_dim),
                          .log_sum_exp = r.log_sum_exp.data() + (b * c_.heads + h) * c_.queries,
                          .add_bias_gradient = add_bias_gradient});
  }

  Case c_;
};

// How far values are from the exact ones. The largest difference is without the rounding of the
// result itself, at most `unit` of it: whether that rounding adds to the others is chance.
struct Differences {
  double largest = 0, root_mean_square = 0;
};

inline Differences differences(const Values& values, const Values& exact, double unit) {
  EXPECT_EQ(values.size(), exact.size());
  Differences found;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == exact[i]) continue;  // infinities as well
    const double difference = std::abs(values[i] - exact[i]);
    squares += difference * difference;
    const double before_rounding = difference - unit * std::abs(exact[i]);
    if (!(before_rounding <= found.largest)) found.largest = before_rounding;
  }
  found.root_mean_square = std::sqrt(squares / static_cast<double>(values.size()));
  return found;
}

// The errors are at most twice those of the formula with the rounding of the type, and on average
// hardly larger.
inline void expect_right(const Case& c) {
  SCOPED_TRACE(c.text());
  const Problem problem(c);
  const Results exact = problem.formula(float64), plain = problem.formula(c.dtype);
  const Results got = problem.run();
  const double tiny = c.dtype == float64 ? 1e-12 : 2e-5;
  const DType statistic = c.dtype == float64 ? float64 : float32;  // of sums that stay wide
  const auto compare = [&](const char* name, Values Results::*member, DType dtype) {
    const Differences ours = differences(got.*member, exact.*member, testing::half_ulp(dtype));
    const Differences bound = differences(plain.*member, exact.*member, 0);
    EXPECT_LE(ours.largest, 2 * bound.largest + tiny) << name;
    EXPECT_LE(ours.root_mean_square, 1.25 * bound.root_mean_square + tiny) << name;
  };
  compare("out", &Results::out, c.dtype);
  compare("log_sum_exp", &Results::log_sum_exp, statistic);
  compare("dq", &Results::dq, c.dtype);
  compare("dk", &Results::dk, c.dtype);
  compare("dv", &Results::dv, c.dtype);
  if (!got.dbias.empty()) compare("dbias", &Results::dbias, statistic);
}

}  // namespace tessera::kernels::attention_problem
