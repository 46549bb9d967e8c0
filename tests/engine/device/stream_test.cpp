// Side streams: order, waiting across streams, exceptions, and the serial mode.
#include "engine/device/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tessera {
namespace {

void nap() {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// Every test runs with streams as threads and in the serial mode: results must not differ.
class StreamTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { setenv("TESSERA_SERIAL_STREAMS", GetParam() ? "1" : "0", 1); }
  void TearDown() override { unsetenv("TESSERA_SERIAL_STREAMS"); }
};
INSTANTIATE_TEST_SUITE_P(Modes, StreamTest, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Serial" : "Threads"; });

TEST_P(StreamTest, WorkRunsInOrder) {
  std::vector<int> order;
  Stream stream("order");
  for (int i = 0; i < 100; ++i) stream.enqueue([&order, i] { order.push_back(i); });
  stream.synchronize();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_P(StreamTest, AnEventIsReachedWhenItsWorkIsDone) {
  EXPECT_TRUE(Event().done());
  Event().wait();
  Stream stream("events");
  bool ran = false;
  const Event event = stream.enqueue([&] {
    nap();
    ran = true;
  });
  event.wait();
  EXPECT_TRUE(ran);
  EXPECT_TRUE(event.done());
  EXPECT_GE(stream.busy_seconds(), 0.004);
}

// The first event does not wait for the second piece of work, and does not report its failure.
TEST_P(StreamTest, TwoPiecesOfWorkHaveAnEventEach) {
  Stream stream("two");
  std::vector<int> order;
  std::atomic<bool> goes_on = GetParam();
  const Stream::Two events = stream.enqueue([&] { order.push_back(1); },
                                            [&] {
                                              while (!goes_on) std::this_thread::yield();
                                              order.push_back(2);
                                              throw std::runtime_error("planted");
                                            });
  events.first.wait();
  EXPECT_TRUE(events.first.succeeded());
  EXPECT_EQ(order.front(), 1);
  goes_on = true;
  EXPECT_THROW(events.second.wait(), std::runtime_error);
  EXPECT_TRUE(events.second.done());
  EXPECT_FALSE(events.second.succeeded());
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST_P(StreamTest, AStreamWaitsForAnothersEvent) {
  Stream producer("producer");
  Stream consumer("consumer");
  int value = 0;
  int seen = 0;
  const Event ready = producer.enqueue([&] {
    nap();
    value = 7;
  });
  consumer.wait(ready);
  consumer.run([&] { seen = value; });
  EXPECT_EQ(seen, 7);
}

TEST_P(StreamTest, AnExceptionIsCarriedByEveryLaterEvent) {
  Stream stream("failing");
  bool later = false;
  const Event failed = stream.enqueue([] { throw std::runtime_error("lost the network"); });
  const Event skipped = stream.enqueue([&] { later = true; });
  EXPECT_THROW(failed.wait(), std::runtime_error);
  EXPECT_THROW(skipped.wait(), std::runtime_error);
  EXPECT_THROW(stream.synchronize(), std::runtime_error);
  EXPECT_TRUE(failed.done());
  EXPECT_FALSE(later);
}

TEST_P(StreamTest, AFailedAttemptConcernsOnlyTheCaller) {
  Stream stream("test");
  EXPECT_THROW(stream.attempt([] { throw std::runtime_error("no room"); }), std::runtime_error);
  int done = 0;
  stream.attempt([&] { ++done; });
  stream.run([&] { ++done; });
  EXPECT_EQ(done, 2);
}

TEST_P(StreamTest, WaitingForAFailedEventFailsBeforeAndAfterItsEnd) {
  for (const bool over : {false, true}) {
    Stream producer("producer");
    Stream consumer("consumer");
    const Event failed = producer.enqueue([] {
      nap();
      throw std::runtime_error("no");
    });
    if (over) {
      EXPECT_THROW(failed.wait(), std::runtime_error);
    }
    bool ran = false;
    consumer.wait(failed);
    EXPECT_THROW(consumer.run([&] { ran = true; }), std::runtime_error);
    EXPECT_FALSE(ran);
  }
}

TEST_P(StreamTest, TheDestructorFinishesWhatWasEnqueued) {
  std::atomic<int> count = 0;
  {
    Stream stream("last");
    for (int i = 0; i < 10; ++i) stream.enqueue([&] { ++count; });
  }
  EXPECT_EQ(count, 10);
}

TEST_P(StreamTest, ObjectsOfWorkAreReleasedBeforeItsEventIsReached) {
  Stream stream("release");
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  stream.enqueue([held = std::move(held)] { (void)*held; }).wait();
  EXPECT_TRUE(watch.expired());
}

TEST_P(StreamTest, OnTheCpuAJoinWaits) {
  Event().join();
  Stream stream("join");
  bool ran = false;
  const Event event = stream.enqueue([&] {
    nap();
    ran = true;
  });
  event.join();
  EXPECT_TRUE(ran);
  const Event failed = stream.enqueue([] { throw std::runtime_error("no"); });
  EXPECT_THROW(failed.join(), std::runtime_error);
}

TEST(StallClock, CountsTheTimeOfItsJoins) {
  Stream stream("stall");
  StallClock clock;
  EXPECT_EQ(clock.seconds(), 0);
  clock.join(Event{});  // nothing to wait for
  const double nothing = clock.seconds();
  clock.join(stream.enqueue(nap));
  EXPECT_GE(clock.seconds() - nothing, 0.004);
  const double before = clock.seconds();
  const Event failed = stream.enqueue([] {
    nap();
    throw std::runtime_error("no");
  });
  EXPECT_THROW(clock.join(failed), std::runtime_error);
  EXPECT_GE(clock.seconds() - before, 0.004);
}

TEST(Stream, RunsBesideTheCaller) {
  Stream stream("beside");
  std::atomic<bool> go = false;
  const Event event = stream.enqueue([&] {
    while (!go) std::this_thread::yield();
  });
  EXPECT_FALSE(event.done());
  go = true;
  event.wait();
}

TEST(Stream, TakesWorkFromManyThreads) {
  Stream stream("many");
  int count = 0;  // accessed only on the stream
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) stream.enqueue([&] { ++count; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  stream.synchronize();
  EXPECT_EQ(count, 200);
}

}  // namespace
}  // namespace tessera
