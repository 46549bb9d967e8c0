// The choice between oneDNN's bfloat16 products and widened ones, and oneDNN's products alone,
// which cpu::matmul does not use on every processor that has them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/matmul/matmul_onednn.h"
#include "kernels/registry.h"

namespace tessera::kernels::cpu {
namespace {

TEST(BFloat16Products, IntelsPairsAreSlowSinceSapphireRapids) {
  EXPECT_TRUE(has_slow_bfloat16_pairs({.intel = true, .family = 6, .model = 143}));  // Sapphire
  EXPECT_TRUE(has_slow_bfloat16_pairs({.intel = true, .family = 6, .model = 207}));  // Emerald
  EXPECT_TRUE(has_slow_bfloat16_pairs({.intel = true, .family = 6, .model = 173}));  // Granite
  EXPECT_FALSE(has_slow_bfloat16_pairs({.intel = true, .family = 6, .model = 85}));  // Cooper Lake
  EXPECT_FALSE(has_slow_bfloat16_pairs({.intel = false, .family = 25, .model = 17}));  // Zen 4
  EXPECT_FALSE(has_slow_bfloat16_pairs({.intel = false, .family = 26, .model = 2}));   // Zen 5
}

std::vector<BFloat16> values(std::int64_t count, int seed) {
  std::vector<BFloat16> result(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = from_float<BFloat16>(
        static_cast<float>((i * 37 + static_cast<std::size_t>(seed)) % 61) - 30.0f);
  }
  return result;
}

// The products of whole numbers have sums below 2^24: every order of sums gives the same.
TEST(BFloat16Products, AreTheSumsOfProducts) {
  set_compute_threads(1);
  constexpr std::int64_t m = 64, n = 48, k = 96;
  const auto a = values(m * k, 1), b = values(k * n, 2);
  int by_onednn = 0;
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      SCOPED_TRACE(fmt::format("transposes {} {}", transpose_a, transpose_b));
      std::vector<float> wanted(m * n), got(m * n);
      for (std::int64_t i = 0; i < m * n; ++i) {
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t row = i / n, column = i % n;
          wanted[static_cast<std::size_t>(i)] +=
              to_float(a[static_cast<std::size_t>(transpose_a ? j * m + row : row * k + j)]) *
              to_float(b[static_cast<std::size_t>(transpose_b ? column * k + j : j * n + column)]);
        }
      }
      const Matmul product{.a = a.data(),
                           .b = b.data(),
                           .c = got.data(),
                           .m = m,
                           .n = n,
                           .k = k,
                           .lda = transpose_a ? m : k,
                           .ldb = transpose_b ? k : n,
                           .ldc = n,
                           .transpose_a = transpose_a,
                           .transpose_b = transpose_b,
                           .dtype = bfloat16,
                           .out_dtype = float32};
      matmul(product);
      EXPECT_EQ(got, wanted);
      if (!onednn_uses(dnnl_cpu_isa_avx512_core_bf16)) continue;
      std::fill(got.begin(), got.end(), 0.0f);
      if (!onednn_bfloat16(product)) continue;  // no fast kernel for these transposes
      ++by_onednn;
      EXPECT_EQ(got, wanted) << "by oneDNN alone";
    }
  }
  EXPECT_EQ(by_onednn > 0, onednn_uses(dnnl_cpu_isa_avx512_core_bf16));
}

}  // namespace
}  // namespace tessera::kernels::cpu
