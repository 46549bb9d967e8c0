// Refused configurations, and schedules.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <set>
#include <stdexcept>
#include <string>

#include "emulator/scheduler/grid.h"
#include "emulator/scheduler/schedule.h"
#include "kernels/cuda/device/gpu.h"

namespace tessera::testing {
namespace {

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
