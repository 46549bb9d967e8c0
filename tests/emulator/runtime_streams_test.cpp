// Streams, events and host functions of the emulated runtime, compared with CUDA's rules of order,
// which hold under every schedule of streams.
#include <condition_variable>
#include <mutex>
#include <thread>

#include "emulator/runtime/mark.h"
#include "emulator/runtime/settings.h"
#include "emulator/runtime_testing.h"

namespace tessera::emulator {
namespace {

using namespace testing;  // NOLINT: names of this test's own header

// A host function that blocks its stream until it is opened. Only the schedule `threads` continues
// meanwhile.
class Gate {
 public:
  void close(cudaStream_t stream) { EXPECT_CUDA(cudaLaunchHostFunc(stream, wait, this)); }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  static void wait(void* self) {
    auto& gate = *static_cast<Gate*>(self);
    std::unique_lock lock(gate.mutex_);
    gate.opened_.wait(lock, [&] { return gate.open_; });
  }

  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

// ---- order

TEST(Streams, RunTheirOperationsInOrder) {
  const OwnedStream stream("a");
  const Memory memory;
  EXPECT_CUDA(cudaMemsetAsync(memory.data(), 0, array_bytes, stream));
  for (int i = 1; i <= 10; ++i) EXPECT_CUDA(launch_add(stream, memory.data(), i));
  expect_all(memory.read(), 55);
}

TEST(Streams, WaitForEventsOfOtherStreams) {
  const OwnedStream first("first");
  const OwnedStream second("second");
  const OwnedEvent event;
  const Memory source;
  const Memory destination;
  EXPECT_CUDA(cudaMemsetAsync(source.data(), 0, array_bytes, first));
  for (int round = 0; round < 50; ++round) {
    EXPECT_CUDA(launch_add(first, source.data(), 1));
    EXPECT_CUDA(cudaEventRecord(event, first));
    EXPECT_CUDA(cudaStreamWaitEvent(second, event, 0));
    EXPECT_CUDA(launch_copy(second, destination.data(), source.data()));
    EXPECT_CUDA(cudaEventRecord(event, second));
    EXPECT_CUDA(cudaStreamWaitEvent(first, event, 0));
  }
  expect_all(destination.read(), 50);
}

TEST(Streams, BlockingOnesAreOrderedWithTheDefaultStream) {
  const OwnedStream blocking("blocking", cudaStreamDefault);
  const Memory memory;
  const Memory copy;
  EXPECT_CUDA(cudaMemset(memory.data(), 0, array_bytes));
  for (int i = 0; i < 20; ++i) {
    EXPECT_CUDA(launch_add(blocking, memory.data(), 1));
    EXPECT_CUDA(launch_add(nullptr, memory.data(), 1));
  }
  EXPECT_CUDA(launch_copy(blocking, copy.data(), memory.data()));
  EXPECT_CUDA(cudaStreamSynchronize(nullptr));
  expect_all(copy.read(), 40);
}

TEST(Streams, DestroyingOneLetsItsWorkFinish) {
  const Memory memory;
  EXPECT_CUDA(cudaMemset(memory.data(), 0, array_bytes));
  EXPECT_CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < 5; ++i) {
    const OwnedStream stream("short-lived");
    EXPECT_CUDA(launch_add(stream, memory.data(), 1));
    if (i < 4) {
      EXPECT_CUDA(cudaStreamSynchronize(stream));
    }
  }
  expect_all(memory.read(), 5);
}

TEST(Streams, HostFunctionsRunInOrderAndMustNotCallCuda) {
  const OwnedStream stream("a");
  struct Seen {
    std::vector<int> order;
    cudaError_t error = cudaSuccess;
  } seen;
  for (int i = 0; i < 3; ++i) {
    EXPECT_CUDA(cudaLaunchHostFunc(
        stream,
        [](void* argument) {
          auto& result = *static_cast<Seen*>(argument);
          result.order.push_back(static_cast<int>(result.order.size()));
          result.error = cudaDeviceSynchronize();
        },
        &seen));
  }
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(seen.order, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(seen.error, cudaErrorNotPermitted);
}

TEST(Streams, OfManyHostThreadsAreIndependent) {
  constexpr int threads = 4;
  std::vector<std::vector<int>> results(threads);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < threads; ++rank) {
    ranks.emplace_back([rank, &results] {
      const OwnedStream stream("rank");
      const OwnedEvent event;
      const Memory memory;
      EXPECT_CUDA(cudaMemsetAsync(memory.data(), 0, array_bytes, stream));
      for (int i = 0; i < 100; ++i) {
        EXPECT_CUDA(launch_add(stream, memory.data(), rank));
        EXPECT_CUDA(cudaEventRecord(event, stream));
        if (i % 10 == 0) {
          EXPECT_CUDA(cudaEventSynchronize(event));
        }
      }
      EXPECT_CUDA(cudaStreamSynchronize(stream));
      results[rank] = memory.read();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int rank = 0; rank < threads; ++rank) expect_all(results[rank], 100 * rank);
}

// ---- events

TEST(Events, UnrecordedOnesAreReachedAndOrderNothing) {
  const OwnedStream stream("a");
  const OwnedEvent event;
  EXPECT_CUDA(cudaEventQuery(event));
  EXPECT_CUDA(cudaEventSynchronize(event));
  EXPECT_CUDA(cudaStreamWaitEvent(stream, event, 0));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
}

TEST(Events, StandForTheirLastRecordAtTheTimeOfTheWait) {
  if (settings().schedule != StreamSchedule::threads) GTEST_SKIP() << "needs streams that go on";
  const OwnedStream recorded("recorded");
  const OwnedStream waiting("waiting");
  const OwnedEvent event;
  Gate gate;
  EXPECT_CUDA(cudaEventRecord(event, recorded));
  EXPECT_CUDA(cudaStreamWaitEvent(waiting, event, 0));
  gate.close(recorded);
  EXPECT_CUDA(cudaEventRecord(event, recorded));
  EXPECT_CUDA(cudaStreamSynchronize(waiting));  // would never end if it waited for the later record
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  gate.open();
  EXPECT_CUDA(cudaEventSynchronize(event));
  EXPECT_CUDA(cudaEventQuery(event));
}

TEST(Events, ElapsedTimeNeedsTwoTimedRecords) {
  const OwnedStream stream("a");
  const OwnedEvent start;
  const OwnedEvent end;
  const OwnedEvent untimed(cudaEventDisableTiming);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaEventRecord(start, stream));
  EXPECT_CUDA(cudaEventRecord(end, stream));
  EXPECT_CUDA(cudaEventRecord(untimed, stream));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_CUDA(cudaEventElapsedTime(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, untimed), cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();
}

TEST(Events, PollingMakesProgressUnderEverySchedule) {
  const OwnedStream stream("a");
  const OwnedEvent event;
  const Memory memory;
  for (int i = 0; i < 10; ++i) EXPECT_CUDA(launch_add(stream, memory.data(), 1));
  EXPECT_CUDA(cudaEventRecord(event, stream));
  while (cudaEventQuery(event) == cudaErrorNotReady) continue;
  (void)cudaGetLastError();
}

TEST(Marks, AreRecycledOnceNothingRefersToThem) {
  const std::string name = "a";
  MarkPool pool;
  const MarkReference kept = pool.take(&name);
  for (int i = 0; i < 1000; ++i) pool.take(&name)->reach();
  EXPECT_LT(pool.size(), 10u);
  EXPECT_FALSE(kept->is_reached());
  EXPECT_FALSE(pool.is_unused());
}

}  // namespace
}  // namespace tessera::emulator
