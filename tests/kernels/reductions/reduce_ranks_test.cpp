// ReduceRanks compared bit for bit with the recursion of its contract.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::narrow;
using testing::to_compute;

// Random values of ranks with very different magnitudes, so that every other order of addition
// changes the result.
template <class T>
struct Inputs {
  std::vector<std::vector<T>> data;
  std::vector<const void*> pointers;

  Inputs(int ranks, std::int64_t n, unsigned seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> mantissa(-1.0, 1.0);
    std::uniform_int_distribution<int> exponent(-6, 6);
    data.resize(static_cast<std::size_t>(ranks));
    for (auto& rank : data) {
      rank.resize(static_cast<std::size_t>(n));
      for (T& x : rank) x = narrow<T>(std::ldexp(mantissa(generator), exponent(generator)));
      pointers.push_back(rank.data());
    }
  }
};

template <class Sum, class Leaf>
Sum tree(int first, int count, const Leaf& leaf) {
  if (count == 1) return leaf(first);
  int left = 1;
  while (left * 2 < count) left *= 2;
  const Sum a = tree<Sum>(first, left, leaf);
  const Sum b = tree<Sum>(first + left, count - left, leaf);
  return a + b;
}

template <class T>
auto reference_sum(const Inputs<T>& in, int group, std::size_t i) {
  using Sum = decltype(to_compute(T{}));
  const int ranks = static_cast<int>(in.data.size());
  const auto of_rank = [&](int r) { return static_cast<Sum>(to_compute(in.data[r][i])); };
  const auto of_group = [&](int g) {
    return tree<Sum>(g * group, std::min(group, ranks - g * group), of_rank);
  };
  return tree<Sum>(0, (ranks + group - 1) / group, of_group);
}

template <class In, class Out>
void check(int ranks, int group, std::int64_t n, float scale, bool accumulate) {
  SCOPED_TRACE(::testing::Message() << ranks << " ranks, group " << group << ", n " << n
                                    << ", scale " << scale << (accumulate ? ", accumulate" : ""));
  const Inputs<In> in(ranks, n, static_cast<unsigned>(ranks * 100 + group));
  std::vector<Out> out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = narrow<Out>(0.37 * static_cast<double>(i));
  const std::vector<Out> before = out;
  cpu::reduce_ranks({.in = in.pointers.data(),
                     .ranks = ranks,
                     .group = group,
                     .out = out.data(),
                     .n = n,
                     .in_dtype = dtype_of<In>,
                     .out_dtype = dtype_of<Out>,
                     .scale = scale,
                     .accumulate = accumulate});
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto sum = reference_sum(in, group, i);
    const auto scaled = static_cast<decltype(sum)>(sum * static_cast<decltype(sum)>(scale));
    const auto old = to_compute(before[i]);
    const Out want = accumulate ? narrow<Out>(old + scaled) : narrow<Out>(scaled);
    ASSERT_EQ(std::memcmp(&out[i], &want, sizeof(Out)), 0) << "element " << i;
  }
}

template <class In, class Out>
void check_sums_of() {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 64}) {
    for (const int group : {1, 2, 3, 4, 5, ranks}) {
      check<In, Out>(ranks, group, 151, 1.0f, false);
      check<In, Out>(ranks, group, 67, 1.0f / 3, true);
    }
  }
  for (const std::int64_t n : {0, 1, 2, 7, 15, 16, 17, 63, 64, 65, 1000}) {
    check<In, Out>(3, 3, n, 0.5f, false);
  }
}

TEST(ReduceRanks, Float32) {
  check_sums_of<float, float>();
}
TEST(ReduceRanks, Float32ToFloat64) {
  check_sums_of<float, double>();
}
TEST(ReduceRanks, BFloat16) {
  check_sums_of<BFloat16, BFloat16>();
}
TEST(ReduceRanks, BFloat16ToFloat32) {
  check_sums_of<BFloat16, float>();
}
TEST(ReduceRanks, Float16) {
  check_sums_of<Float16, Float16>();
}
TEST(ReduceRanks, Float16ToFloat32) {
  check_sums_of<Float16, float>();
}
TEST(ReduceRanks, Float16ToFloat64) {
  check_sums_of<Float16, double>();
}
TEST(ReduceRanks, Float64) {
  check_sums_of<double, double>();
}
TEST(ReduceRanks, Float64ToFloat32) {
  check_sums_of<double, float>();
}

TEST(ReduceRanks, MoreRanksThanOneWouldLaunch) {
  check<float, float>(300, 300, 40, 1.0f, false);
  check<float, float>(257, 7, 40, 1.0f, false);
}

TEST(ReduceRanks, AGroupOfAPowerOfTwoIsASubtree) {
  constexpr std::int64_t n = 333;
  for (const int ranks : {4, 6, 8, 12, 16, 24}) {
    for (const int group : {2, 4, 8}) {
      if (ranks % group != 0) continue;
      const Inputs<BFloat16> in(ranks, n, 9);
      std::vector<float> whole(n), in_two(n);
      cpu::reduce_ranks({.in = in.pointers.data(),
                         .ranks = ranks,
                         .group = ranks,
                         .out = whole.data(),
                         .n = n,
                         .in_dtype = bfloat16,
                         .out_dtype = float32});
      std::vector<std::vector<float>> partial(static_cast<std::size_t>(ranks / group));
      std::vector<const void*> pointers;
      for (int g = 0; g < ranks / group; ++g) {
        partial[g].resize(n);
        pointers.push_back(partial[g].data());
        cpu::reduce_ranks({.in = in.pointers.data() + g * group,
                           .ranks = group,
                           .group = group,
                           .out = partial[g].data(),
                           .n = n,
                           .in_dtype = bfloat16,
                           .out_dtype = float32});
      }
      cpu::reduce_ranks({.in = pointers.data(),
                         .ranks = ranks / group,
                         .group = ranks / group,
                         .out = in_two.data(),
                         .n = n,
                         .in_dtype = float32,
                         .out_dtype = float32});
      EXPECT_EQ(std::memcmp(whole.data(), in_two.data(), n * sizeof(float)), 0);
    }
  }
}

// Large enough for streaming stores and several threads, at several alignments, cut in two.
TEST(ReduceRanks, CutsAlignmentAndThreadsChangeNoBit) {
  constexpr std::int64_t n = (std::int64_t{33} << 18) + 5;
  std::vector<std::vector<float>> in(3, std::vector<float>(n));
  for (std::size_t r = 0; r < in.size(); ++r) {
    auto state = static_cast<std::uint32_t>(r + 1);
    for (float& x : in[r]) x = static_cast<float>(state = state * 1664525u + 1013904223u);
  }
  const auto run = [&](float* out, std::int64_t first, std::int64_t count) {
    const void* pointers[] = {in[0].data() + first, in[1].data() + first, in[2].data() + first};
    cpu::reduce_ranks({.in = pointers,
                       .ranks = 3,
                       .group = 3,
                       .out = out,
                       .n = count,
                       .in_dtype = float32,
                       .out_dtype = float32,
                       .scale = 1.0f / 3});
  };
  std::vector<float> want(n), got(n + 32);
  for (std::int64_t i = 0; i < n; ++i) want[i] = (in[0][i] + in[1][i] + in[2][i]) * (1.0f / 3);
  const int threads = compute_threads();
  const auto same = [&](std::int64_t shift) {
    return std::memcmp(want.data(), got.data() + shift, n * sizeof(float)) == 0;
  };
  set_compute_threads(1);
  run(got.data(), 0, n);
  EXPECT_TRUE(same(0)) << "one thread";
  set_compute_threads(3);
  for (const std::int64_t shift : {1, 16}) {
    run(got.data() + shift, 0, n);
    EXPECT_TRUE(same(shift)) << shift;
  }
  run(got.data(), 0, 12345);
  run(got.data() + 12345, 12345, n - 12345);
  EXPECT_TRUE(same(0)) << "cut";
  set_compute_threads(threads);
}

TEST(ReduceRanks, InPlaceAndBadCalls) {
  Inputs<float> in(2, 100, 11);
  const std::vector<float> first = in.data[0];
  cpu::reduce_ranks({.in = in.pointers.data(),
                     .ranks = 2,
                     .group = 2,
                     .out = in.data[0].data(),
                     .n = 100,
                     .in_dtype = float32,
                     .out_dtype = float32});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(in.data[0][i], first[i] + in.data[1][i]);
  ReduceRanks bad{.in = in.pointers.data(),
                  .ranks = 2,
                  .group = 0,
                  .out = in.data[0].data(),
                  .n = 100,
                  .in_dtype = float32,
                  .out_dtype = float32};
  EXPECT_THROW(cpu::reduce_ranks(bad), std::logic_error);
  bad.group = 2;
  bad.out_dtype = bfloat16;
  EXPECT_THROW(cpu::reduce_ranks(bad), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels
