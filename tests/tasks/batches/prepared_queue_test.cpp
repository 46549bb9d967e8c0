// Batches that are prepared ahead: in order, of the rank's samples; and exceptions while preparing.
#include "tasks/batches/prepared_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/errors.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

struct NumberedBatch final : Prepared {
  std::vector<std::int64_t> samples_taken;
};

// Prepares the sample numbers themselves; one of them cannot be read.
class NumberTask final : public Task {
 public:
  explicit NumberTask(std::int64_t unreadable = -1) : unreadable_(unreadable) {}
  [[nodiscard]] std::unique_ptr<Prepared> prepare(
      std::size_t /*data_set*/, std::span<const std::int64_t> samples) const override {
    for (const std::int64_t sample : samples) {
      if (sample == unreadable_) fail(ErrorCode::data, "sample {} is unreadable", sample);
    }
    if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    auto numbers = std::make_unique<NumberedBatch>();
    numbers->samples_taken.assign(samples.begin(), samples.end());
    prepared.fetch_add(1);
    return numbers;
  }
  mutable std::atomic<int> prepared = 0;
  bool slow = false;

  // The queue does not call these.
  [[nodiscard]] nn::Module& module() override { misuse("not asked"); }
  [[nodiscard]] std::vector<std::int64_t> samples_per_epoch() const override { return {}; }
  [[nodiscard]] std::unique_ptr<Prepared> blank(std::int64_t) const override { return {}; }
  [[nodiscard]] Tensor loss(const Prepared&, const Context&) override { return {}; }

 private:
  std::int64_t unreadable_;
};

std::vector<std::int64_t> taken(PreparedQueue& queue) {
  const PreparedQueue::Taken next = queue.take();
  return dynamic_cast<const NumberedBatch&>(*next.prepared).samples_taken;
}

TEST(PreparedQueue, ReturnsARanksSamplesInOrder) {
  const NumberTask task;
  const BatchOrder order({.samples = {10}});
  DataPosition from = order.begin();
  from.next = {20};
  PreparedQueue queue(task, order, {.first = 2, .samples = 2, .all = 4}, from);
  EXPECT_EQ(taken(queue), (std::vector<std::int64_t>{22, 23}));
  EXPECT_EQ(taken(queue), (std::vector<std::int64_t>{26, 27}));
  EXPECT_EQ(queue.take().batch.first, 28);
}

TEST(PreparedQueue, ReturnsPartsOfAnySize) {
  const NumberTask task;
  const BatchOrder order({.samples = {10}});
  PreparedQueue queue(task, order, {.first = 1, .samples = 3, .all = 5}, order.begin());
  EXPECT_EQ(taken(queue), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(taken(queue), (std::vector<std::int64_t>{6, 7, 8}));
}

TEST(PreparedQueue, PreparesAhead) {
  const NumberTask task;
  const BatchOrder order({.samples = {10}});
  PreparedQueue queue(task, order, {.first = 0, .samples = 2, .all = 2}, order.begin());
  (void)queue.take();
  for (int i = 0; i < 1000 && task.prepared < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(task.prepared, 5);  // one taken, and four ahead
}

TEST(PreparedQueue, CountsTheWaitingTime) {
  NumberTask task;
  task.slow = true;
  const BatchOrder order({.samples = {10}});
  PreparedQueue queue(task, order, {.first = 0, .samples = 2, .all = 2}, order.begin());
  for (int i = 0; i < 3; ++i) (void)queue.take();
  EXPECT_GT(queue.waited_seconds(), 0.03);
}

TEST(PreparedQueue, RethrowsAnExceptionWhenItsBatchIsTaken) {
  const NumberTask task(5);
  const BatchOrder order({.samples = {10}});
  PreparedQueue queue(task, order, {.first = 0, .samples = 2, .all = 2}, order.begin());
  EXPECT_EQ(taken(queue), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(taken(queue), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(testing::error_of([&] { (void)queue.take(); }, ErrorCode::data),
            "sample 5 is unreadable");
}

}  // namespace
}  // namespace tessera::tasks
