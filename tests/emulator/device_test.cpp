// The device language on the emulator: the result of each operation, under every schedule.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "emulator/scheduler/grid.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/gpu.h"

namespace tessera::testing {
namespace {

using namespace kernels::cuda;

// Sets an environment variable for a scope.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) {
      old_ = old;
      was_set_ = true;
    }
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { was_set_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::string old_;
  bool was_set_ = false;
};

// Every test runs under each schedule, with one and with three OS threads.
class EmulatedDevice : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  Environment schedule_{"TESSERA_EMULATOR_SCHEDULE", std::get<0>(GetParam())};
  Environment threads_{"TESSERA_EMULATOR_THREADS", std::to_string(std::get<1>(GetParam()))};
};
INSTANTIATE_TEST_SUITE_P(Schedules, EmulatedDevice,
                         ::testing::Combine(::testing::Values("forward", "reverse", "random",
                                                              "random:7"),
                                            ::testing::Values(1, 3)),
                         [](const auto& test) {
                           std::string name = std::get<0>(test.param);
                           if (const auto colon = name.find(':'); colon != std::string::npos)
                             name.replace(colon, 1, "_");
                           return name + "_on_" + std::to_string(std::get<1>(test.param));
                         });

template <class Body>
void run_warp(Body body) {
  emulator::run_grid(dim3(1), dim3(warp_size), 0, "test", body);
}

TEST_P(EmulatedDevice, EveryThreadOfEveryBlockRunsOnce) {
  const dim3 grid(3, 2, 2), block(5, 3, 4);
  std::vector<int> runs(3 * 2 * 2 * 5 * 3 * 4);
  emulator::run_grid(grid, block, 0, "indices", [&] {
    ASSERT_EQ(gridDim.x * gridDim.y * gridDim.z, 12u);
    const unsigned in_grid = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned in_block = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    ++runs[in_grid * 60 + in_block];
  });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

// Launches when its thread ends, as the owner of a stream does that then waits for it.
struct LaunchesAtTheEnd {
  std::vector<int>* runs;
  ~LaunchesAtTheEnd() {
    emulator::run_grid(dim3(5), dim3(1), 0, "at the end", [this] { ++(*runs)[blockIdx.x]; });
  }
};

TEST_P(EmulatedDevice, AThreadMayLaunchWhileItEnds) {
  std::vector<int> runs(5);
  std::thread([&runs] {
    static thread_local const LaunchesAtTheEnd last{&runs};
    EXPECT_EQ(last.runs, &runs);
    emulator::run_grid(dim3(1), dim3(1), 0, "before",
                       [] {});  // created later, so destroyed earlier
  }).join();
  EXPECT_EQ(runs, std::vector<int>(5, 1));
}

TEST_P(EmulatedDevice, ShufflesMoveValuesWithinSegments) {
  int up[32], down[32], swapped[32], first[32];
  double wide[32];
  run_warp([&] {
    const int lane = static_cast<int>(threadIdx.x);
    up[lane] = __shfl_up_sync(whole_warp, lane, 3, 8);
    down[lane] = __shfl_down_sync(whole_warp, lane, 3, 8);
    swapped[lane] = __shfl_xor_sync(whole_warp, lane, 5);
    first[lane] = __shfl_sync(whole_warp, lane, 9, 8);  // lane 1 of each segment
    wide[lane] = __shfl_xor_sync(whole_warp, lane + 0.5, 1);
  });
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(up[lane], lane % 8 < 3 ? lane : lane - 3);
    EXPECT_EQ(down[lane], lane % 8 + 3 >= 8 ? lane : lane + 3);
    EXPECT_EQ(swapped[lane], lane ^ 5);
    EXPECT_EQ(first[lane], lane / 8 * 8 + 1);
    EXPECT_EQ(wide[lane], (lane ^ 1) + 0.5);
  }
}

TEST_P(EmulatedDevice, VotesAndMatchesSeeTheLanesOfTheMask) {
  unsigned odd[32], matches[32], halves[32];
  run_warp([&] {
    const int lane = static_cast<int>(threadIdx.x);
    odd[lane] = __ballot_sync(whole_warp, lane % 2);
    matches[lane] = __match_any_sync(whole_warp, lane % 4);
    // Each half of a warp has operations of its own.
    const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    halves[lane] = __ballot_sync(half, lane != 20);
  });
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(odd[lane], 0xaaaaaaaau);
    EXPECT_EQ(matches[lane], 0x11111111u << (lane % 4));
    EXPECT_EQ(halves[lane], lane < 16 ? 0xffffu : 0xffef0000u);
  }
}

// A lane that takes its result late must not get that of a later operation.
TEST_P(EmulatedDevice, LanesMayRunAhead) {
  std::vector<int> sums(32);
  run_warp([&] {
    const int lane = static_cast<int>(threadIdx.x);
    int sum = __shfl_sync(whole_warp, lane, 31 - lane);
    if (lane < 2) {
      for (int i = 0; i < 10; ++i) sum += __shfl_xor_sync(0x3u, 100, 1);
    }
    sums[lane] = sum;
  });
  for (int lane = 0; lane < 32; ++lane) EXPECT_EQ(sums[lane], 31 - lane + (lane < 2 ? 1000 : 0));
}

TEST_P(EmulatedDevice, BarriersOrderSharedMemory) {
  constexpr int threads = 96;
  std::vector<int> sums(threads);
  emulator::run_grid(dim3(1), dim3(threads), threads * sizeof(int), "barriers", [&] {
    auto* shared = dynamic_shared_memory<int>();
    const unsigned i = threadIdx.x;
    for (int round = 0; round < 5; ++round) {
      shared[i] = round;
      __syncthreads();
      sums[i] += shared[(i + 37) % threads];
      __syncthreads();
    }
  });
  EXPECT_EQ(sums, std::vector<int>(threads, 10));
}

TEST_P(EmulatedDevice, AtomicsOfAllTypes) {
  constexpr int blocks = 6, threads = 64, total = blocks * threads;
  int integer = 0;
  unsigned wrapping = 0, bits = 0, winners = 0, claimed = 0;
  unsigned long long wide = 0;
  float single = 0;
  double exact = 0;
  __half half = __float2half(0);
  emulator::run_grid(dim3(blocks), dim3(threads), 0, "atomics", [&] {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(&integer, 1);
    atomicInc(&wrapping, 99);
    atomicOr(&bits, 1u << (i % 32));
    if (atomicCAS(&claimed, 0u, 1u) == 0) atomicAdd(&winners, 1u);
    atomicAdd(&wide, 1ull << 33);
    atomicAdd(&single, 0.5f);
    atomicAdd(&exact, 0.25);
    atomicAdd(&half, __float2half(1));
  });
  EXPECT_EQ(integer, total);
  EXPECT_EQ(wrapping, total % 100);
  EXPECT_EQ(bits, ~0u);
  EXPECT_EQ(winners, 1u);
  EXPECT_EQ(wide, static_cast<unsigned long long>(total) << 33);
  EXPECT_EQ(single, 0.5f * total);
  EXPECT_EQ(exact, 0.25 * total);
  EXPECT_EQ(__half2float(half), static_cast<float>(total));
}

// Small integers and halves: exact in both types and in any order of summation.
template <class T>
std::vector<T> tile_of(int count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> draw(-8, 8);
  std::vector<T> values;
  for (int i = 0; i < count; ++i) values.push_back(T(static_cast<float>(draw(generator)) / 2));
  return values;
}

std::uint32_t pair_at(const void* elements) {
  std::uint32_t pair = 0;
  std::memcpy(&pair, elements, sizeof(pair));
  return pair;
}

// c + a b for a [16, 16], b [16, 8], with fragments built by hand from the PTX manual.
template <class T, auto multiply>
void expect_plain_product() {
  const std::vector<T> a = tile_of<T>(16 * 16, 1);
  const std::vector<T> b_columns = tile_of<T>(8 * 16, 2);  // [column, depth]
  std::vector<float> c(16 * 8);
  run_warp([&] {
    const int group = static_cast<int>(threadIdx.x) / 4;
    const int k = static_cast<int>(threadIdx.x) % 4 * 2;
    const std::uint32_t left[4] = {pair_at(&a[group * 16 + k]), pair_at(&a[(group + 8) * 16 + k]),
                                   pair_at(&a[group * 16 + k + 8]),
                                   pair_at(&a[(group + 8) * 16 + k + 8])};
    const std::uint32_t right[2] = {pair_at(&b_columns[group * 16 + k]),
                                    pair_at(&b_columns[group * 16 + k + 8])};
    float sum[4] = {1, 2, 3, 4};
    multiply(sum, left, right, sum, emulator::Place::here());
    c[group * 8 + k] = sum[0];
    c[group * 8 + k + 1] = sum[1];
    c[(group + 8) * 8 + k] = sum[2];
    c[(group + 8) * 8 + k + 1] = sum[3];
  });
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float expected = static_cast<float>(1 + row / 8 * 2 + column % 2);
      for (int k = 0; k < 16; ++k) {
        expected +=
            static_cast<float>(a[row * 16 + k]) * static_cast<float>(b_columns[column * 16 + k]);
      }
      EXPECT_EQ(c[row * 8 + column], expected) << row << ", " << column;
    }
  }
}

TEST_P(EmulatedDevice, TensorCoreMultipliesBfloat16) {
  expect_plain_product<__nv_bfloat16, mma_bfloat16>();
}
TEST_P(EmulatedDevice, TensorCoreMultipliesFloat16) {
  expect_plain_product<__half, mma_float16>();
}

struct FourMatrices {
  alignas(16) std::uint16_t element[4][8][8];
};

template <auto load>
std::vector<std::uint32_t> loaded_fragments() {
  std::vector<std::uint32_t> fragments(32 * 4);
  run_warp([&] {
    auto& matrices = shared_memory<FourMatrices>();
    const unsigned lane = threadIdx.x;
    for (unsigned j = 0; j < 8; ++j) {
      matrices.element[lane / 8][lane % 8][j] = static_cast<std::uint16_t>(lane * 8 + j);
    }
    __syncwarp();
    std::uint32_t fragment[4];
    load(fragment, matrices.element[lane / 8][lane % 8], emulator::Place::here());
    for (int i = 0; i < 4; ++i) fragments[lane * 4 + i] = fragment[i];
  });
  return fragments;
}

TEST_P(EmulatedDevice, MatricesAreLoadedInBothForms) {
  const auto plain = loaded_fragments<load_matrix_x4>();
  const auto transposed = loaded_fragments<load_matrix_x4_transposed>();
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t i = lane / 4, j = 2 * (lane % 4);
    for (std::uint32_t matrix = 0; matrix < 4; ++matrix) {
      const std::uint32_t first = matrix * 64 + i * 8 + j;
      EXPECT_EQ(plain[lane * 4 + matrix], first | (first + 1) << 16);
      const std::uint32_t across = matrix * 64 + j * 8 + i;
      EXPECT_EQ(transposed[lane * 4 + matrix], across | (across + 8) << 16);
    }
  }
}

TEST_P(EmulatedDevice, CopiesArriveWithTheirGroupAndNotBefore) {
  alignas(16) const float from[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  std::vector<float> seen(12);
  bool early = true;
  emulator::run_grid(dim3(1), dim3(1), sizeof(from), "copies", [&] {
    auto* to = dynamic_shared_memory<float>();
    copy_async_16(to, from);
    copy_async_commit();
    copy_async_16(to + 4, from + 4);
    copy_async_16(to + 8, nullptr, false);
    copy_async_commit();
    early = !std::isnan(to[0]);
    copy_async_wait<1>();
    early = early || to[0] != 0 || to[3] != 3 || !std::isnan(to[4]);
    copy_async_wait<0>();
    for (int i = 0; i < 12; ++i) seen[i] = to[i];
  });
  EXPECT_FALSE(early);
  EXPECT_EQ(seen, (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0}));
}

TEST_P(EmulatedDevice, SharedMemoryIsFreshInEveryBlock) {
  struct Counter {
    float value;
  };
  struct Other;
  std::vector<int> fresh(8);
  emulator::run_grid(dim3(8), dim3(1), sizeof(float), "fresh", [&] {
    auto& mine = shared_memory<Counter>();
    auto& other = shared_memory<Counter, Other>();
    auto* dynamic = dynamic_shared_memory<float>();
    fresh[blockIdx.x] = std::isnan(mine.value) && std::isnan(other.value) && std::isnan(*dynamic);
    mine.value = other.value = *dynamic = 1;
    fresh[blockIdx.x] += &mine != &other && &mine == &shared_memory<Counter>();
  });
  EXPECT_EQ(fresh, std::vector<int>(8, 2));
}

TEST_P(EmulatedDevice, BlockSumIsTheSameInEverySchedule) {
  constexpr int threads = 256;
  std::vector<float> results(4);
  emulator::run_grid(dim3(4), dim3(threads), 0, "sum", [&] {
    const float value = 1.0f / static_cast<float>(threadIdx.x + 1 + blockIdx.x);
    const float sum = block_sum<threads>(value);
    if (threadIdx.x == blockIdx.x) results[blockIdx.x] = sum;
  });
  // The tree of block_reduce: butterflies in each warp, then the warps in order.
  for (unsigned block = 0; block < 4; ++block) {
    std::vector<float> lanes(threads);
    for (unsigned i = 0; i < threads; ++i) lanes[i] = 1.0f / static_cast<float>(i + 1 + block);
    for (unsigned offset = 16; offset > 0; offset /= 2) {
      const std::vector<float> before = lanes;
      for (unsigned i = 0; i < threads; ++i) lanes[i] = before[i] + before[i ^ offset];
    }
    float expected = lanes[0];
    for (unsigned warp = 1; warp < threads / 32; ++warp) expected += lanes[warp * 32];
    EXPECT_EQ(results[block], expected);
  }
}

TEST_P(EmulatedDevice, HostThreadsRunGridsAtTheSameTime) {
  std::vector<int> sums(4);
  std::vector<std::thread> hosts;
  for (int host = 0; host < 4; ++host) {
    hosts.emplace_back([&sums, host] {
      for (int round = 0; round < 5; ++round) {
        emulator::run_grid(dim3(3), dim3(64), 0, "ranks", [&] {
          const int sum = block_sum<64>(1);
          if (threadIdx.x == 0) atomicAdd(&sums[host], sum);
        });
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(sums, std::vector<int>(4, 5 * 3 * 64));
}

}  // namespace
}  // namespace tessera::testing
