// CUDA's single-thread functions on the host, refused configurations, and schedules.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>

#include "emulator/scheduler/grid.h"
#include "emulator/scheduler/schedule.h"
#include "kernels/cuda/device/gpu.h"

namespace tessera::testing {
namespace {

TEST(Intrinsics, CountAndMoveBits) {
  EXPECT_EQ(__popc(0xf0f0u), 8);
  EXPECT_EQ(__popcll(~0ull), 64);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__clzll(1), 63);
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(8), 4);
  EXPECT_EQ(__ffsll(1ll << 40), 41);
  EXPECT_EQ(__brev(1u), 0x80000000u);
  EXPECT_EQ(__brevll(2ull), 1ull << 62);
  EXPECT_EQ(__byte_perm(0x03020100u, 0x07060504u, 0x7531u), 0x07050301u);
  EXPECT_EQ(__byte_perm(0x00008000u, 0, 0x9u), 0x000000ffu);  // the sign of byte 1
  EXPECT_EQ(__funnelshift_l(0x80000000u, 1u, 1), 3u);
  EXPECT_EQ(__funnelshift_r(0, 1u, 1), 0x80000000u);
}

TEST(Intrinsics, HighHalvesOfProducts) {
  EXPECT_EQ(__umulhi(0xffffffffu, 0xffffffffu), 0xfffffffeu);
  EXPECT_EQ(__mulhi(-1, 1), -1);
  EXPECT_EQ(__umul64hi(~0ull, ~0ull), ~0ull - 1);
  EXPECT_EQ(__mul64hi(-1, 1), -1);
}

TEST(Intrinsics, ReinterpretBits) {
  EXPECT_EQ(__float_as_uint(1.0f), 0x3f800000u);
  EXPECT_EQ(__uint_as_float(0x40000000u), 2.0f);
  EXPECT_EQ(__int_as_float(__float_as_int(-0.5f)), -0.5f);
  EXPECT_EQ(__longlong_as_double(__double_as_longlong(0.1)), 0.1);
  EXPECT_EQ(__hiloint2double(__double2hiint(-3.7), __double2loint(-3.7)), -3.7);
}

TEST(Intrinsics, ArithmeticAndConversions) {
  EXPECT_EQ(rsqrtf(4.0f), 0.5f);
  EXPECT_EQ(__fmaf_rn(2, 3, 4), 10.0f);
  // Rounded twice; a fused operation would keep the small part.
  const float one_more = std::nextafter(1.0f, 2.0f);
  EXPECT_EQ(__fadd_rn(__fmul_rn(one_more, one_more), -(one_more * one_more)), 0.0f);
  EXPECT_EQ(__fsqrt_rn(2.0f), std::sqrt(2.0f));
  EXPECT_EQ(__float2int_rn(2.5f), 2);
  EXPECT_EQ(__float2int_rz(-2.9f), -2);
  EXPECT_EQ(__saturatef(std::numeric_limits<float>::quiet_NaN()), 0.0f);
  EXPECT_EQ(__saturatef(1.5f), 1.0f);
}

TEST(Intrinsics, MinimumAndMaximumPreferNumbers) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(max(1, 2), 2);
  EXPECT_EQ(min(1u, 2u), 1u);
  EXPECT_EQ(max(nan, 1.0f), 1.0f);
  EXPECT_EQ(min(1.0f, nan), 1.0f);
}

TEST(Configuration, RefusesInvalidConfigurations) {
  const auto check = [](dim3 grid, dim3 block, std::size_t shared_bytes) {
    return emulator::check_configuration(grid, block, shared_bytes);
  };
  EXPECT_EQ(check(dim3(1), dim3(1024), std::size_t{227} << 10), cudaSuccess);
  EXPECT_EQ(check(dim3(0), dim3(32), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(check(dim3(1), dim3(0), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(check(dim3(1), dim3(1025), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(check(dim3(1), dim3(64, 32), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(check(dim3(1), dim3(1, 1, 65), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(check(dim3(1, 65536), dim3(32), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(check(dim3(1), dim3(32), (std::size_t{227} << 10) + 1), cudaErrorInvalidValue);
  EXPECT_THROW(emulator::run_grid(dim3(1), dim3(1025), 0, "large", [] {}), std::invalid_argument);
}

TEST(Schedule, OrdersArePermutations) {
  for (const auto order : {emulator::Schedule::Order::forward, emulator::Schedule::Order::reverse,
                           emulator::Schedule::Order::random}) {
    for (const std::uint64_t count : {1, 2, 6, 64, 97, 1000}) {
      const emulator::BlockOrder blocks({order, 5, 1}, count);
      std::set<std::uint64_t> seen;
      for (std::uint64_t turn = 0; turn < count; ++turn) seen.insert(blocks.at(turn));
      EXPECT_EQ(seen.size(), count);
      EXPECT_LT(*seen.rbegin(), count);
    }
  }
}

TEST(Schedule, RefusesUnknownValues) {
  const auto refuses = [](const char* variable, std::initializer_list<const char*> values) {
    const char* old = std::getenv(variable);
    const std::string kept = old != nullptr ? old : "";
    for (const char* value : values) {
      setenv(variable, value, 1);
      EXPECT_THROW((void)emulator::Schedule::from_environment(), std::invalid_argument) << value;
    }
    setenv(variable, kept.c_str(), 1);  // empty is equivalent to absent
  };
  refuses("TESSERA_EMULATOR_SCHEDULE", {"backward", "random:", "random:x", "forward "});
  refuses("TESSERA_EMULATOR_THREADS", {"0", "65", "two", "-1"});
  refuses("TESSERA_EMULATOR_RACES", {"warps", "thread", "streams "});
}

TEST(Schedule, ReadsTheSeed) {
  const char* old = std::getenv("TESSERA_EMULATOR_SCHEDULE");
  const std::string kept = old != nullptr ? old : "";
  setenv("TESSERA_EMULATOR_SCHEDULE", "random:12", 1);
  EXPECT_EQ(emulator::Schedule::from_environment().seed, 12u);
  setenv("TESSERA_EMULATOR_SCHEDULE", kept.c_str(), 1);
}

}  // namespace
}  // namespace tessera::testing
