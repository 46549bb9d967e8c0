// Errors, memory and copies of the emulated runtime, compared with CUDA's rules.
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "emulator/runtime/settings.h"
#include "emulator/runtime_testing.h"

namespace tessera::emulator {
namespace {

using namespace testing;  // NOLINT: names of this test's own header

// A small limit, so that it is reached soon; set before the runtime reads its settings.
class LittleMemory final : public ::testing::Environment {
 public:
  void SetUp() override { (void)setenv("TESSERA_EMULATOR_MEMORY", "16777216", 1); }
};
[[maybe_unused]] const ::testing::Environment* const little_memory =
    ::testing::AddGlobalTestEnvironment(std::make_unique<LittleMemory>().release());

// ---- errors

TEST(Errors, OfLaunchesAreReturnedAndKept) {
  const OwnedStream stream("a");
  const Memory memory;
  LaunchRecord record = record_of("too large");
  record.block = dim3(2048);
  EXPECT_EQ(launch(stream, record, add_to_all, memory.data(), 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_CUDA(cudaGetLastError());
  record.block = dim3(1);
  record.shared_bytes = 228 << 10;
  EXPECT_EQ(launch(stream, record, add_to_all, memory.data(), 1), cudaErrorInvalidValue);
  record = record_of("overrun", {{memory.data(), array_bytes + 4, true}});
  EXPECT_EQ(launch(stream, record, add_to_all, memory.data(), 1), cudaErrorIllegalAddress);
  (void)cudaGetLastError();
}

TEST(Errors, OfBadHandlesAndRanges) {
  const Memory memory;
  std::vector<int> host(count);
  cudaStream_t destroyed = nullptr;
  EXPECT_CUDA(cudaStreamCreateWithFlags(&destroyed, cudaStreamDefault));
  EXPECT_CUDA(cudaStreamDestroy(destroyed));
  EXPECT_EQ(cudaStreamSynchronize(destroyed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(destroyed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(nullptr, nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemcpy(memory.data(), host.data(), array_bytes + 4, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(memory.data() + 1, host.data(), array_bytes, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), memory.data(), array_bytes, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), host.data(), array_bytes, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(host.data(), 0, array_bytes, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(memory.data() + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(memory.data()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaSetDevice(settings().devices), cudaErrorInvalidDevice);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument");
  (void)cudaGetLastError();
}

TEST(Errors, OfAKernelStayUntilTheDeviceIsReset) {
  const OwnedStream stream("a");
  (void)setenv("TESSERA_EMULATOR_SCHEDULE", "upside down", 1);  // run_grid throws
  const cudaError_t started = launch(
      stream, record_of("unlucky"), +[](int) {}, 0);
  const cudaError_t ended = cudaStreamSynchronize(stream);
  (void)unsetenv("TESSERA_EMULATOR_SCHEDULE");
  EXPECT_CUDA(started);
  EXPECT_EQ(ended, cudaErrorLaunchFailure);
  EXPECT_EQ(launch(
                stream, record_of("next"), +[](int) {}, 0),
            cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_CUDA(cudaDeviceReset());
  EXPECT_CUDA(cudaDeviceSynchronize());
}

// ---- memory

TEST(DeviceMemory, IsLimitedFilledAndCounted) {
  std::size_t free_before = 0;
  std::size_t total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free_before, &total));
  EXPECT_EQ(total, settings().memory);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(memory, nullptr);
  {
    const Memory half(1000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(half.data()) % 256, 0u);
    std::size_t free_now = 0;
    ASSERT_CUDA(cudaMemGetInfo(&free_now, &total));
    EXPECT_EQ(free_now, free_before - 1000);
    EXPECT_EQ(half.data()[0], -1);
    EXPECT_EQ(half.data()[249], -1);
  }
  std::size_t free_after = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free_after, &total));
  EXPECT_EQ(free_after, free_before);
}

TEST(DeviceMemory, FreedInStreamOrderIsAvailableWhenItIsNeeded) {
  const OwnedStream stream("a");
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free_bytes, &total));
  const std::size_t large = free_bytes / 8 * 5;
  for (int i = 0; i < 3; ++i) {
    void* memory = nullptr;
    ASSERT_CUDA(cudaMallocAsync(&memory, large, stream));
    EXPECT_CUDA(cudaMemsetAsync(memory, 0, array_bytes, stream));
    EXPECT_CUDA(cudaFreeAsync(memory, stream));
    EXPECT_EQ(cudaFreeAsync(memory, stream), cudaErrorInvalidValue);
  }
  (void)cudaGetLastError();
}

TEST(Copies, FromPageableMemoryHaveReadItOnReturn) {
  const OwnedStream stream("a");
  const Memory memory;
  std::vector<int> host(count, 5);
  EXPECT_CUDA(
      cudaMemcpyAsync(memory.data(), host.data(), array_bytes, cudaMemcpyHostToDevice, stream));
  std::fill(host.begin(), host.end(), 6);
  EXPECT_CUDA(
      cudaMemcpyAsync(host.data(), memory.data(), array_bytes, cudaMemcpyDeviceToHost, stream));
  expect_all(host, 5);  // pageable again: the call waited
}

TEST(SettingsDeathTest, RefusesInvalidValues) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  (void)setenv("TESSERA_EMULATOR_DEVICES", "few", 1);
  int number = 0;
  EXPECT_DEATH((void)cudaGetDeviceCount(&number), "TESSERA_EMULATOR_DEVICES=few is not valid");
  (void)setenv("TESSERA_EMULATOR_DEVICES", "0", 1);
  EXPECT_EXIT(std::exit(cudaGetDeviceCount(&number)), ::testing::ExitedWithCode(cudaErrorNoDevice),
              "");
  (void)unsetenv("TESSERA_EMULATOR_DEVICES");
}

}  // namespace
}  // namespace tessera::emulator
