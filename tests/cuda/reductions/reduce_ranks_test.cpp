// The sum over ranks on the GPU has the CPU's bits.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

struct ReduceCase {
  int ranks, group;
  std::size_t n = 45;
  std::size_t offset = 0, out_offset = 0;
};

void check(const ReduceCase& c, DType in_dtype, DType out_dtype, bool accumulate) {
  SCOPED_TRACE(std::to_string(c.ranks) + " ranks in groups of " + std::to_string(c.group));
  std::vector<MirroredArray> inputs;
  std::vector<const void*> host, device;
  for (int rank = 0; rank < c.ranks; ++rank) {
    inputs.emplace_back(random_values(c.n, in_dtype, 1 + static_cast<unsigned>(rank)), in_dtype,
                        c.offset);
  }
  for (MirroredArray& input : inputs) {
    host.push_back(input.host());
    device.push_back(input.device());
  }
  MirroredArray out(random_values(c.n, out_dtype, 99), out_dtype, c.out_offset);
  const float scale = 1.0f / 3.0f;
  const auto n = static_cast<std::int64_t>(c.n);
  TestContext context;
  kernels::cuda::reduce_ranks(
      {device.data(), c.ranks, c.group, out.device(), n, in_dtype, out_dtype, scale, accumulate},
      context.queue());
  kernels::cpu::reduce_ranks(
      {host.data(), c.ranks, c.group, out.host(), n, in_dtype, out_dtype, scale, accumulate});
  out.expect_same("reduce_ranks", "out");
}

TEST(CudaReduceRanks, EveryTree) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (int group = 1; group <= ranks; ++group) {
      check({ranks, group, 9}, bfloat16, float32, false);
    }
  }
  for (const int ranks : {31, 48, 63, 64}) {
    for (const int group : {1, 3, 7, 8, 9, 21, 31, 64})
      check({ranks, group, 9}, float32, float32, true);
  }
}

TEST(CudaReduceRanks, EveryDtype) {
  for (const DType in : floating_dtypes) {
    for (const DType out : {in, float32, float64}) {
      for (const bool accumulate : {false, true}) {
        check({3, 3}, in, out, accumulate);
        check({8, 4, 45, 1, 1}, in, out, accumulate);
        check({5, 2, 45, 1, 0}, in, out, accumulate);
        check({2, 2, 0}, in, out, accumulate);
      }
    }
  }
}

// More ranks than a launch takes: several GPUs on many hosts, or many in one.
TEST(CudaReduceRanks, MoreRanksThanOneLaunch) {
  for (const int ranks : {65, 72, 80, 129, 200, 1024}) {
    for (const int group : {1, 3, 8, 12, 40, 64, 72, 100, ranks}) {
      if (group <= ranks) check({ranks, group, 9, 1, 1}, bfloat16, float32, false);
    }
  }
  for (const DType in : floating_dtypes) {
    for (const DType out : {in, float32, float64}) check({80, 8, 45}, in, out, true);
  }
}

TEST(CudaReduceRanks, OverAnInput) {
  MirroredArray a(random_values(45, float32, 1), float32),
      b(random_values(45, float32, 2), float32);
  const void* const host[] = {a.host(), b.host()};
  const void* const device[] = {a.device(), b.device()};
  TestContext context;
  kernels::cuda::reduce_ranks({device, 2, 2, a.device(), 45, float32, float32, 1.0f, false},
                              context.queue());
  kernels::cpu::reduce_ranks({host, 2, 2, a.host(), 45, float32, float32, 1.0f, false});
  a.expect_same("reduce_ranks", "out over an input");
}

TEST(CudaReduceRanks, RefusesTypesThatItCannotAdd) {
  TestContext context;
  const DeviceMemory memory(64);
  const std::vector<const void*> in(65, memory.data());
  const auto run = [&](int ranks, int group, DType in_dtype, DType out_dtype) {
    kernels::cuda::reduce_ranks(
        {in.data(), ranks, group, memory.data(), 4, in_dtype, out_dtype, 1.0f, false},
        context.queue());
  };
  EXPECT_THROW(run(0, 1, float32, float32), std::logic_error);
  EXPECT_THROW(run(2, 0, float32, float32), std::logic_error);
  EXPECT_THROW(run(2, 1, int32, int32), std::logic_error);
  EXPECT_THROW(run(2, 1, float32, bfloat16), std::logic_error);
}

}  // namespace
}  // namespace tessera::testing
