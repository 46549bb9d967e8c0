// Casts: every bf16 and fp16 pattern, a dense sweep of floats, accumulation, integers, cuts.
#include "kernels/elementwise.h"

#include <bit>

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels::testing {
namespace {

template <class T>
std::vector<T> every_pattern() {
  std::vector<T> out(65536);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].bits = static_cast<std::uint16_t>(i);
  return out;
}

template <class In, class Out>
std::vector<Out> cast_all(const std::vector<In>& in) {
  std::vector<Out> out(in.size());
  cpu::cast(
      {in.data(), out.data(), static_cast<std::int64_t>(in.size()), dtype_of<In>, dtype_of<Out>});
  return out;
}

// Floats around every rounding decision: all upper halves with lower halves at, next to and between
// ties.
std::vector<float> decisive_floats() {
  std::vector<float> out;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu,
                                      0x8000u, 0x8001u, 0x9000u, 0xf000u, 0xffffu}) {
      out.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  return out;
}

template <class T>
void expect_widening_is_exact() {
  const auto in = every_pattern<T>();
  const auto out = cast_all<T, float>(in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const float expected = to_float(in[i]);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(out[i])) << std::hex << i;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(expected))
          << std::hex << i;
    }
  }
  const auto back = cast_all<float, T>(out);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (std::isnan(out[i])) {
      ASSERT_TRUE(std::isnan(to_float(back[i]))) << std::hex << i;
    } else {
      ASSERT_EQ(back[i].bits, in[i].bits) << std::hex << i;
    }
  }
}

template <class T>
void expect_narrowing_rounds_to_nearest_even() {
  const auto in = decisive_floats();
  const auto out = cast_all<float, T>(in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(out[i].bits, from_float<T>(in[i]).bits)
        << std::hex << std::bit_cast<std::uint32_t>(in[i]);
  }
}

TEST(Cast, BFloat16Exhaustive) {
  for_each_target([] {
    expect_widening_is_exact<BFloat16>();
    expect_narrowing_rounds_to_nearest_even<BFloat16>();
  });
}

TEST(Cast, Float16Exhaustive) {
  for_each_target([] {
    expect_widening_is_exact<Float16>();
    expect_narrowing_rounds_to_nearest_even<Float16>();
  });
}

template <class In, class Out>
void expect_pair(std::int64_t n) {
  const auto in = normals<In>(n, 1, 3.0);
  const auto old = normals<Out>(n, 2);
  std::vector<double> plain(in.size()), scaled(in.size()), accumulated(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    plain[i] = widen(in[i]);
    scaled[i] = widen(in[i]) * static_cast<double>(0.3f);
    accumulated[i] = widen(old[i]) + scaled[i];
  }
  auto out = old;
  cpu::cast({in.data(), out.data(), n, dtype_of<In>, dtype_of<Out>});
  expect_close(out, plain, 0);
  cpu::cast({in.data(), out.data(), n, dtype_of<In>, dtype_of<Out>, 0.3f});
  expect_close(out, scaled, 1);
  out = old;
  cpu::cast({in.data(), out.data(), n, dtype_of<In>, dtype_of<Out>, 0.3f, true});
  expect_close(out, accumulated, 2, 4.0);
  expect_cut_invariant<Out>(n, [&](std::int64_t first, std::int64_t last, Out* piece) {
    cpu::cast(
        {in.data() + first, piece + first, last - first, dtype_of<In>, dtype_of<Out>, 0.3f, true});
  });
  if constexpr (sizeof(In) == sizeof(Out)) {
    out.resize(in.size());
    std::memcpy(out.data(), in.data(), in.size() * sizeof(In));
    cpu::cast({out.data(), out.data(), n, dtype_of<In>, dtype_of<Out>, 0.3f});
    expect_close(out, scaled, 1);
  }
}

template <class In>
void expect_pairs(std::int64_t n) {
  expect_pair<In, float>(n);
  expect_pair<In, BFloat16>(n);
  expect_pair<In, Float16>(n);
  expect_pair<In, double>(n);
}

TEST(Cast, EveryFloatingPair) {
  for_each_target([] {
    for (const std::int64_t n : {1, 7, 31, 33, 1000, 1021}) {
      expect_pairs<float>(n);
      expect_pairs<BFloat16>(n);
      expect_pairs<Float16>(n);
      expect_pairs<double>(n);
    }
  });
}

TEST(Cast, DoubleRoundsOnce) {
  const std::vector<double> in = {1.0 + 0x1p-8 + 0x1p-40,
                                  1.0 + 0x1p-8 - 0x1p-40,
                                  1.0 + 0x1p-8,
                                  -(1.0 + 0x1p-8 + 0x1p-40),
                                  1e300,
                                  -1e-300};
  const auto out = cast_all<double, BFloat16>(in);
  const std::vector<std::uint16_t> expected = {0x3f81, 0x3f80, 0x3f80, 0xbf81, 0x7f80, 0x8000};
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(out[i].bits, expected[i]) << i;
  const auto half =
      cast_all<double, Float16>({1.0 + 0x1p-11 + 0x1p-40, 1.0 + 0x1p-11, 0x1p-25 + 0x1p-60});
  EXPECT_EQ(half[0].bits, 0x3c01);
  EXPECT_EQ(half[1].bits, 0x3c00);
  EXPECT_EQ(half[2].bits, 0x0001);
}

TEST(Cast, SameDtypeKeepsEveryBit) {
  const auto in = every_pattern<Float16>();
  expect_same_bits(in, cast_all<Float16, Float16>(in), "fp16 copy");
}

TEST(Cast, Integers) {
  const std::vector<std::int64_t> in = {0, 1, -1, 255, 257, 65535, -100000, 16777217};
  EXPECT_EQ((cast_all<std::int64_t, std::int32_t>(in)),
            (std::vector<std::int32_t>{0, 1, -1, 255, 257, 65535, -100000, 16777217}));
  EXPECT_EQ((cast_all<std::int64_t, float>(in))[7], 16777216.0f);
  EXPECT_EQ((cast_all<std::int64_t, double>(in))[7], 16777217.0);
  EXPECT_EQ(to_float(cast_all<std::int64_t, BFloat16>(in)[3]), 255.0f);
  EXPECT_EQ(to_float(cast_all<std::int64_t, BFloat16>(in)[4]), 256.0f);
  const std::vector<std::uint8_t> flags = {0, 1, 1};
  std::vector<float> out(3);
  cpu::cast({flags.data(), out.data(), 3, boolean, float32});
  EXPECT_EQ(out, (std::vector<float>{0, 1, 1}));
  std::vector<std::uint8_t> booleans(in.size());
  cpu::cast({in.data(), booleans.data(), 8, int64, boolean});
  EXPECT_EQ(booleans, (std::vector<std::uint8_t>{0, 1, 1, 1, 1, 1, 1, 1}));
}

TEST(Cast, Refusals) {
  std::vector<float> x(2);
  std::vector<std::int32_t> y(2);
  EXPECT_THROW(cpu::cast({x.data(), y.data(), 2, float32, int32}), std::logic_error);
  EXPECT_THROW(cpu::cast({y.data(), x.data(), 2, int32, float32, 2.0f}), std::logic_error);
}

TEST(Cast, ThreadsChangeNoBit) {
  const auto in = normals<float>(100'003, 3);
  expect_thread_invariant([&] { return cast_all<float, BFloat16>(in); });
}

}  // namespace
}  // namespace tessera::kernels::testing
