// Memory of the engine's GPU: reuse in the order of queues, limits, and scratch of kernels.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "cuda/engine/engine_testing.h"
#include "engine/cuda/arena.h"
#include "engine/device/backend.h"
#include "engine/device/memory.h"

namespace tessera {
namespace {

using testing::counting;
using testing::error_of;
using testing::Gate;
using testing::gpu;
using testing::on_gpu;

// A small arena, so that its end can be reached. The first use of a GPU in a program creates the
// arena, so these tests run in a program of their own, or are skipped.
class Memory : public ::testing::Test {
 protected:
  static constexpr std::size_t arena_bytes = std::size_t{64} << 20;

  static void SetUpTestSuite() { setenv("TESSERA_CUDA_MEMORY", "64M", 1); }
  static void TearDownTestSuite() { unsetenv("TESSERA_CUDA_MEMORY"); }
  void SetUp() override {
    const auto source = backend_of(DeviceType::cuda).memory_source(gpu);
    if (dynamic_cast<const cuda::Arena&>(*source).bytes() != arena_bytes) {
      GTEST_SKIP() << "other tests have made a larger arena: run engine_memory_test alone";
    }
  }
};

TEST_F(Memory, IsReusedInTheOrderOfTheQueue) {
  const auto pool = MemoryPool::create(gpu);
  const auto size = std::size_t{100'000};
  const std::byte* first = pool->allocate(size).get();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0u);
  EXPECT_EQ(pool->allocate(size).get(), first);
  EXPECT_EQ(pool->stats().system_allocations, 1u);
  EXPECT_EQ(pool->stats().reserved, 100'096u);
}

TEST_F(Memory, ReportsTheArenasContentsWhenItIsFull) {
  const auto pool = MemoryPool::create(gpu);
  const auto held = pool->allocate(std::size_t{8} << 20);
  const Error error = error_of([&] { (void)pool->allocate(std::size_t{60} << 20); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  for (const char* part : {"62914560 bytes asked for", "8388608 bytes in use", "cuda:0", "67108864",
                           "TESSERA_CUDA_MEMORY", "smaller batch"}) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_EQ(pool->stats().in_use, std::size_t{8} << 20);
}

// A pool returns memory that its queue still uses; another thread gets it after that work.
TEST_F(Memory, IsNotHandedToAnotherThreadWhileItIsInUse) {
  constexpr std::int64_t elements = 10 << 20;  // two of them do not fit
  MemoryPool::current(gpu)->trim();
  std::atomic<bool> put_in = false;
  std::vector<float> seen(4);
  std::thread first([&] {
    DeviceQueue& queue = current_queue(gpu);
    Tensor x = Tensor::full({elements}, 1, float32, gpu);
    Gate gate(queue);
    Tensor copy = Tensor::empty({4}, float32, gpu);
    queue.copy(copy.data(), x.data(), copy.bytes());
    x = {};
    MemoryPool::current(gpu)->trim();
    put_in = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
    queue.copy_to_host(seen.data(), copy.data(), copy.bytes());
  });
  while (!put_in) std::this_thread::yield();
  const Tensor other = Tensor::full({elements}, 2, float32, gpu);
  EXPECT_EQ(Tensor::view_of(other.storage(), 0, {}, float32).item(), 2);
  first.join();
  EXPECT_EQ(seen, std::vector<float>(4, 1.0f));
  MemoryPool::current(gpu)->trim();
}

// Idle memory is handed out while other memory is still in use, without waiting for the device,
// where a collective may be waiting for this thread.
TEST_F(Memory, IsHandedOutBesideWhatIsInFlight) {
  DeviceQueue& queue = current_queue(gpu);
  const auto pool = MemoryPool::create(gpu);
  Gate gate(queue);
  const std::byte* const busy = pool->allocate(std::size_t{8} << 20).get();
  pool->trim();
  const auto other = pool->allocate(std::size_t{8} << 20);
  EXPECT_NE(other.get(), busy);
  EXPECT_FALSE(queue.record()->reached());  // the gate is closed
}

TEST_F(Memory, OfTheKernelsGrowsInTheOrderOfTheQueue) {
  const auto queue = backend_of(DeviceType::cuda).make_queue(gpu, "scratch", QueuePriority::normal);
  kernels::cuda::Context& context = kernels::cuda::context_of(queue->native());
  void* first = context.scratch(1000);
  EXPECT_EQ(context.scratch(900'000), first);
  const Tensor source = on_gpu(counting(1000));
  queue->wait(current_queue(gpu).record());
  std::vector<float> result(1000);
  {
    Gate gate(*queue);
    queue->copy(first, source.data(), source.bytes());
    void* larger = context.scratch(std::size_t{3} << 20);
    EXPECT_NE(larger, first);
    queue->zero(larger, std::size_t{3} << 20);  // would overlap `first` if that were free
    queue->copy(source.raw_data(), first, source.bytes());
  }
  queue->copy_to_host(result.data(), source.data(), source.bytes());
  EXPECT_EQ(result, counting(1000));
  const Error error = error_of([&] { (void)context.scratch(std::size_t{1} << 40); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
}

}  // namespace
}  // namespace tessera
