// Dropout: the CPU's masks and bits for every option, element, alignment and cut.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

constexpr kernels::RandomKey key{.seed = 77 | std::uint64_t{3} << 40,
                                 .stream = (std::uint64_t{5} << 32) | 9};

struct DropoutCase {
  std::int64_t first;
  float p;
  bool residual, accumulate;
  std::size_t x_offset = 0, out_offset = 0;
};

void check(const DropoutCase& c, DType dtype, std::size_t n) {
  MirroredArray x(random_values(n, dtype, 1), dtype, c.x_offset);
  MirroredArray residual(random_values(n, dtype, 2), dtype, c.x_offset);
  MirroredArray out(random_values(n, dtype, 3), dtype, c.out_offset);
  const auto count = static_cast<std::int64_t>(n);
  TestContext context;
  kernels::cuda::dropout({x.device(), c.residual ? residual.device() : nullptr, out.device(), count,
                          c.first, dtype, key, c.p, c.accumulate},
                         context.queue());
  kernels::cpu::dropout({x.host(), c.residual ? residual.host() : nullptr, out.host(), count,
                         c.first, dtype, key, c.p, c.accumulate});
  out.expect_same("dropout", "out");
}

TEST(CudaDropout, EveryOption) {
  const std::int64_t far = (std::int64_t{1} << 34) - 6;
  const DropoutCase dropouts[] = {
      {0, 0.1f, false, false},         {0, 0.5f, true, true},
      {4, 0.3f, true, false},  // aligned to a block of words, not to a group of 16-bit elements
      {1, 0.3f, false, true, 1, 1},  // draws and memory are unaligned together
      {5, 0.3f, true, false, 5, 5},    {2, 0.3f, true, true, 0, 0},  // ... and apart
      {far, 0.7f, false, false, 3, 2}, {0, 0.0f, true, false},
      {0, 1.0f, false, true},
  };
  for (const DType dtype : floating_dtypes) {
    for (const DropoutCase& c : dropouts) {
      for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{77}}) {
        check(c, dtype, n);
      }
    }
    check({0, 0.2f, true, true}, dtype, 2503);
  }
}

TEST(CudaDropout, InPlaceAndCutGivesTheSameBits) {
  constexpr std::size_t n = 203;
  for (const DType dtype : floating_dtypes) {
    const DeviceMemory x(random_values(n, dtype, 1), dtype);
    const DeviceMemory out(x.bytes()), in_place(x.read());
    TestContext context;
    kernels::cuda::dropout({x.data(), nullptr, out.data(), n, 0, dtype, key, 0.4f},
                           context.queue());
    std::int64_t first = 0;
    for (const std::int64_t count : {13, 100, 1, 89}) {
      auto* part = in_place.as<char>() + static_cast<std::size_t>(first) * size_of(dtype);
      kernels::cuda::dropout({part, nullptr, part, count, first, dtype, key, 0.4f},
                             context.queue());
      first += count;
    }
    EXPECT_TRUE(in_place.read() == out.read()) << name_of(dtype);
  }
}

// A dropped element is zero, even if it was a NaN or infinite.
TEST(CudaDropout, DropsNonFiniteElements) {
  constexpr std::size_t n = 64;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  MirroredArray x(std::vector<double>(n, nan), float32), out(std::vector<double>(n, 1), float32);
  TestContext context;
  kernels::cuda::dropout({x.device(), nullptr, out.device(), n, 0, float32, key, 0.5f},
                         context.queue());
  kernels::cpu::dropout({x.host(), nullptr, out.host(), n, 0, float32, key, 0.5f});
  const std::vector<double> device = out.device_values(), host = out.host_values();
  int dropped = 0;
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_EQ(device[i] == 0, host[i] == 0) << i;
    dropped += device[i] == 0 ? 1 : 0;
  }
  EXPECT_GT(dropped, 0);
  EXPECT_LT(dropped, static_cast<int>(n));
}

TEST(CudaDropout, RefusesInvalidProbabilities) {
  const DeviceMemory x(16);
  TestContext context;
  for (const float p : {-0.1f, 1.1f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THROW(kernels::cuda::dropout({x.data(), nullptr, x.data(), 4, 0, float32, key, p},
                                        context.queue()),
                 std::logic_error);
  }
  EXPECT_THROW(kernels::cuda::dropout({x.data(), nullptr, x.data(), 4, -1, float32, key, 0.1f},
                                      context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
