// Side streams on the GPU, stalls, and bad data in kernels.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "cuda/engine/engine_testing.h"
#include "engine/device/stream.h"
#include "engine/ops.h"

namespace tessera {
namespace {

using testing::counting;
using testing::error_of;
using testing::fetch;
using testing::Gate;
using testing::gpu;
using testing::on_gpu;

TEST(Faults, AreDataErrorsThatNameThePlace) {
  const Tensor table = Tensor::zeros({5, 4}, float32, gpu);
  const Tensor ids = Tensor::from(std::vector<std::int32_t>{0, 4, 9, 1}, {4}).to(gpu);
  const Tensor rows = embedding(ids, table);
  const Error error = error_of([&] { (void)rows.to_vector(); });
  EXPECT_EQ(error.code(), ErrorCode::data);
  EXPECT_NE(std::string(error.what())
                .find("embedding: id 9 at position 2 is outside the table of 5 entries"),
            std::string::npos)
      << error.what();
  EXPECT_EQ(table.to_vector(),
            std::vector<double>(20, 0.0));  // reported once, and the queue continues

  const Tensor logits = Tensor::zeros({3, 6}, float32, gpu);
  const Tensor targets = Tensor::from(std::vector<std::int64_t>{5, -100, 6}, {3}).to(gpu);
  const Tensor loss = cross_entropy(logits, targets);
  const Error bad_target = error_of([&] { current_queue(gpu).synchronize(); });
  EXPECT_EQ(bad_target.code(), ErrorCode::data);
  EXPECT_NE(std::string(bad_target.what())
                .find("cross-entropy: target 6 of row 2 is outside the vocabulary of 6"),
            std::string::npos)
      << bad_target.what();
}

TEST(Faults, AreReportedAtPointsAndStreams) {
  const Tensor table = Tensor::zeros({5, 4}, float32, gpu);
  const Tensor ids = Tensor::full({1}, 5, int32, gpu);
  const Tensor rows = embedding(ids, table);
  const PointHandle point = current_queue(gpu).record();
  EXPECT_EQ(error_of([&] { point->synchronize(); }).code(), ErrorCode::data);
  EXPECT_EQ(error_of([&] { current_queue(gpu).synchronize(); }).code(), ErrorCode::data);
  current_queue(gpu).synchronize();
  Stream stream("gather", gpu);
  const Event event = stream.enqueue([&] { (void)embedding(ids, table); });
  EXPECT_EQ(error_of([&] { event.wait(); }).code(), ErrorCode::data);
}

// Streams as workers with their queues, and in the serial mode: the results are the same.
class DeviceStreamTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { setenv("TESSERA_SERIAL_STREAMS", GetParam() ? "1" : "0", 1); }
  void TearDown() override { unsetenv("TESSERA_SERIAL_STREAMS"); }
};
INSTANTIATE_TEST_SUITE_P(Modes, DeviceStreamTest, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Serial" : "Threads"; });

TEST_P(DeviceStreamTest, WorkSeesTheCallersEarlierWork) {
  Stream stream("gather", gpu);
  Tensor x = on_gpu(counting(1000));
  Tensor result = Tensor::empty({1000}, float32, gpu);
  for (int i = 0; i < 5; ++i) {
    x.copy_from(x * 2.0);
    const Event event =
        stream.enqueue([&] { current_queue(gpu).copy(result.data(), x.data(), result.bytes()); });
    event.join();  // before x changes, and before the result is read
  }
  EXPECT_EQ(fetch(result)[3], 96.0f);
  EXPECT_GE(stream.busy_seconds(), 0.0);
}

TEST_P(DeviceStreamTest, StreamsWaitForEachOther) {
  Stream gather("gather", gpu);
  Stream reduce("reduce", gpu);
  const Tensor x = Tensor::zeros({512}, float32, gpu);
  const Tensor y = Tensor::zeros({512}, float32, gpu);
  const std::vector<float> values = counting(512);
  const Event written = gather.enqueue(
      [&] { current_queue(gpu).copy_from_host(x.raw_data(), values.data(), x.bytes()); });
  reduce.wait(written);
  reduce.enqueue([&] { current_queue(gpu).copy(y.raw_data(), x.data(), y.bytes()); }).join();
  EXPECT_EQ(fetch(y), values);
}

TEST_P(DeviceStreamTest, AnExceptionIsCarriedByEveryLaterEvent) {
  Stream stream("reduce", gpu);
  const Event failed = stream.enqueue([] { fail(ErrorCode::rank_failed, "a peer is gone"); });
  const Event later = stream.enqueue([] {});
  EXPECT_EQ(error_of([&] { failed.join(); }).code(), ErrorCode::rank_failed);
  EXPECT_EQ(error_of([&] { later.wait(); }).code(), ErrorCode::rank_failed);
}

TEST_P(DeviceStreamTest, TheDestructorFinishesWhatWasEnqueued) {
  const Tensor x = Tensor::zeros({512}, float32, gpu);
  current_queue(gpu).synchronize();
  {
    Stream stream("last", gpu);
    stream.enqueue(
        [&] { current_queue(gpu).copy_from_host(x.raw_data(), counting(512).data(), 2048); });
  }
  EXPECT_EQ(fetch(x)[511], 511.0f);
}

TEST(DeviceStream, RunsBesideTheComputeQueue) {
  Stream stream("gather", gpu);
  DeviceQueue& queue = current_queue(gpu);
  const Tensor x = Tensor::zeros({4}, float32, gpu);
  Event event;
  std::atomic<Gate*> gate = nullptr;
  std::atomic<bool> over = false;
  event = stream.enqueue([&] {
    Gate held(current_queue(gpu));
    gate = &held;
    while (!over) std::this_thread::yield();
  });
  while (gate == nullptr) std::this_thread::yield();
  EXPECT_EQ(x.to_vector(), std::vector<double>(4, 0.0));  // the compute queue continues
  EXPECT_FALSE(event.done());
  gate.load()->open();
  over = true;
  event.join();
  queue.synchronize();
  EXPECT_TRUE(event.done());
  EXPECT_GT(stream.busy_seconds(), 0.0);
}

TEST(StallClock, CountsTheTimeOfIdleQueues) {
  Stream stream("gather", gpu);
  StallClock clock(gpu);
  clock.join(Event{});
  const double nothing = clock.seconds();
  const Event event =
      stream.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
  clock.join(event);
  EXPECT_GE(clock.seconds() - nothing, 0.02);
  EXPECT_LT(nothing, 0.02);
}

}  // namespace
}  // namespace tessera
