// Steps whose blocks have fixed places: addresses, page faults, blocks that live longer, steps that
// differ, memory that runs out.
#include "engine/device/memory_step.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/places/step_statistics.h"
#include "tests/support/sanitizers.h"

namespace tessera {
namespace {

using Block = std::shared_ptr<std::byte>;

constexpr std::size_t mib = std::size_t{1} << 20;

// The thread's pool during a test.
class StepPool {
 public:
  explicit StepPool(std::shared_ptr<MemoryPool> pool = MemoryPool::create())
      : pool_(std::move(pool)) {
    MemoryPool::set_current(pool_);
  }
  ~StepPool() { MemoryPool::set_current(before_); }
  StepPool(const StepPool&) = delete;
  StepPool& operator=(const StepPool&) = delete;
  [[nodiscard]] MemoryPool* operator->() const { return pool_.get(); }
  [[nodiscard]] StepStatistics statistics() const { return pool_->step_statistics(); }

  // A block whose bytes are all written.
  [[nodiscard]] Block filled(std::size_t bytes, int value = 7) const {
    Block block = pool_->allocate(bytes);
    std::memset(block.get(), value, bytes);
    return block;
  }

 private:
  std::shared_ptr<MemoryPool> before_ = MemoryPool::current();
  std::shared_ptr<MemoryPool> pool_;
};

bool all_are(const Block& block, std::size_t bytes, int value) {
  return std::all_of(block.get(), block.get() + bytes,
                     [value](std::byte byte) { return byte == static_cast<std::byte>(value); });
}

// A forward that keeps blocks of these sizes, each with a temporary, and a backward that frees
// them, last first. Returns all addresses in order.
std::vector<const std::byte*> take_step(const StepPool& pool,
                                        const std::vector<std::size_t>& sizes) {
  const MemoryStep step(Device::cpu());
  std::vector<const std::byte*> addresses;
  std::vector<Block> kept;
  for (const std::size_t bytes : sizes) {
    kept.push_back(pool.filled(bytes));
    addresses.push_back(kept.back().get());
    addresses.push_back(pool.filled(bytes / 2).get());
  }
  while (!kept.empty()) {
    kept.pop_back();
    addresses.push_back(pool.filled(3 * mib).get());
  }
  return addresses;
}

const std::vector<std::size_t> layer_sizes = {2 * mib, 5 * mib, 1000, mib, 3 * mib};

long faults_of_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST(MemoryStep, AddressesAreTheSameInEveryStepAfterTwoEqualOnes) {
  const StepPool pool;
  take_step(pool, layer_sizes);
  take_step(pool, layer_sizes);
  const auto first = take_step(pool, layer_sizes);
  const std::uint64_t allocations = pool->stats().system_allocations;
  for (int step = 0; step < 5; ++step) EXPECT_EQ(take_step(pool, layer_sizes), first);
  EXPECT_EQ(pool->stats().system_allocations, allocations);
  EXPECT_EQ(pool.statistics().placed, 6u);
}

// The pool would also give pages back, for other sizes, and get them again in each step.
TEST(MemoryStep, APlacedStepHasNoPageFault) {
  const StepPool pool;
  for (int step = 0; step < 4; ++step) take_step(pool, layer_sizes);
  const long before = faults_of_thread();
  take_step(pool, layer_sizes);
  if (!testing::address_sanitizer) {  // whose own memory has faults, too
    EXPECT_EQ(faults_of_thread() - before, 0);
  }
}

TEST(MemoryStep, HoldsWhatLivesAtTheSameTimeAndNoMore) {
  const StepPool pool;
  for (int step = 0; step < 2; ++step) take_step(pool, layer_sizes);
  const std::size_t live = pool->stats().peak_in_use;
  take_step(pool, layer_sizes);
  pool->reset_peak();
  for (int step = 0; step < 3; ++step) take_step(pool, layer_sizes);
  EXPECT_EQ(pool->step_needs().live_bytes, live);
  EXPECT_LE(static_cast<double>(pool->step_needs().placed_bytes), 1.03 * static_cast<double>(live));
  EXPECT_EQ(pool->stats().peak_in_use, live);
  EXPECT_LE(pool->stats().peak_held, pool->step_needs().placed_bytes + 4096);
}

TEST(MemoryStep, ABlockThatOutlivesItsStepKeepsItsValues) {
  const StepPool pool;
  std::vector<Block> caches;
  for (int number = 0; number < 6; ++number) {
    {
      const MemoryStep step(Device::cpu());
      const Block first = pool.filled(mib, 1);
      caches.push_back(pool.filled(2 * mib, 100 + number));
      const Block second = pool.filled(mib, 2);
    }
    take_step(pool, {});
  }
  for (int number = 0; number < 6; ++number) {
    EXPECT_TRUE(all_are(caches[static_cast<std::size_t>(number)], 2 * mib, 100 + number)) << number;
  }
}

// It has a place, because it did not outlive the steps before.
TEST(MemoryStep, APlacedBlockThatIsKeptIsNotGivenToTheNextStep) {
  const StepPool pool;
  Block kept;
  for (int number = 0; number < 8; ++number) {
    const MemoryStep step(Device::cpu());
    const Block one = pool.filled(2 * mib, number);
    const Block two = pool.filled(mib, 50 + number);
    if (number == 4) kept = one;
    if (number > 4) {
      EXPECT_NE(one.get(), kept.get());
      EXPECT_TRUE(all_are(one, 2 * mib, number));
      EXPECT_TRUE(all_are(two, mib, 50 + number));
    }
  }
  EXPECT_TRUE(all_are(kept, 2 * mib, 4));
  EXPECT_GT(pool.statistics().displaced, 0u);
  kept.reset();
}

TEST(MemoryStep, AStepInAnotherOrderIsServedByThePool) {
  const StepPool pool;
  for (int step = 0; step < 3; ++step) take_step(pool, layer_sizes);
  const auto usual = take_step(pool, layer_sizes);
  {
    const MemoryStep step(Device::cpu());
    const Block one = pool.filled(2 * mib, 1);
    const Block other = pool.filled(4 * mib, 2);
    const Block two = pool.filled(mib, 3);
    EXPECT_TRUE(all_are(one, 2 * mib, 1));
    EXPECT_TRUE(all_are(other, 4 * mib, 2));
    EXPECT_TRUE(all_are(two, mib, 3));
  }
  EXPECT_EQ(pool.statistics().different, 1u);
  EXPECT_EQ(pool.statistics().last.step, 5u);
  EXPECT_EQ(pool.statistics().last.position, 1u);
  EXPECT_EQ(take_step(pool, layer_sizes), usual);
}

// An evaluation between steps: the pages that it needs are those of the range, as far as the peak
// requires it.
TEST(MemoryStep, WorkBetweenStepsTakesThePagesOfTheRange) {
  const StepPool pool;
  for (int step = 0; step < 3; ++step) take_step(pool, layer_sizes);
  const std::size_t peak = pool->stats().peak_held;
  const auto usual = take_step(pool, layer_sizes);
  { const Block evaluation = pool.filled(9 * mib); }
  EXPECT_LE(pool->stats().peak_held, peak + mib);
  EXPECT_EQ(take_step(pool, layer_sizes), usual);
  EXPECT_LE(pool->stats().peak_held, peak + mib);
}

TEST(MemoryStep, AllocationsOfOtherThreadsHaveNoPlaces) {
  const StepPool pool;
  for (int number = 0; number < 5; ++number) {
    const MemoryStep step(Device::cpu());
    const Block mine = pool.filled(mib);
    if (number % 2 == 1) std::thread([&] { (void)pool.filled(5 * mib); }).join();
  }
  EXPECT_EQ(pool.statistics().placed, 3u);
}

TEST(MemoryStep, InsideAnotherHasNoEffect) {
  const StepPool pool;
  for (int number = 0; number < 4; ++number) {
    const MemoryStep outer(Device::cpu());
    const Block one = pool.filled(mib);
    take_step(pool, layer_sizes);
    const Block two = pool.filled(mib);
  }
  EXPECT_EQ(pool.statistics().steps, 4u);
  EXPECT_EQ(pool.statistics().placed, 2u);
}

TEST(MemoryStep, TheRangeIsGivenBackBetweenStepsIfOthersNeedIt) {
  const StepPool pool;
  for (int step = 0; step < 4; ++step) take_step(pool, layer_sizes);
  EXPECT_GT(pool->stats().reserved, 0u);
  pool->trim();
  EXPECT_EQ(pool->stats().reserved, 0u);
  EXPECT_EQ(pool->stats().held, 0u);
  take_step(pool, layer_sizes);
  EXPECT_EQ(pool.statistics().placed, 3u);
}

TEST(MemoryStep, AnOutOfMemoryThatIsCaughtLeavesUsableSteps) {
  const StepPool pool;
  const auto fails = [&] {
    const MemoryStep step(Device::cpu());
    const Block one = pool.filled(2 * mib);
    (void)pool->allocate(std::size_t{1} << 60);
  };
  for (int step = 0; step < 3; ++step) take_step(pool, layer_sizes);
  const auto usual = take_step(pool, layer_sizes);
  EXPECT_THROW(fails(), Error);
  EXPECT_EQ(pool->stats().in_use, 0u);
  EXPECT_EQ(pool.statistics().different, 1u);
  EXPECT_EQ(take_step(pool, layer_sizes).size(), usual.size());
  EXPECT_EQ(pool.statistics().placed, 3u);
}

// A source with no room for the range beside a block that stays.
class ScarceSource final : public MemorySource {
 public:
  [[nodiscard]] std::size_t granularity(std::size_t) const override { return 64; }
  [[nodiscard]] std::byte* take(std::size_t bytes) override {
    if (bytes > 2048) return nullptr;
    return static_cast<std::byte*>(::operator new(bytes));
  }
  void give_back(std::byte* block, std::size_t) override { ::operator delete(block); }
};

TEST(MemoryStep, WithoutRoomForTheRangeThePoolServesTheSteps) {
  const StepPool pool(MemoryPool::create(std::make_shared<ScarceSource>()));
  for (int number = 0; number < 6; ++number) {
    const MemoryStep step(Device::cpu());
    const Block one = pool.filled(2048);
    const Block two = pool.filled(2048);
  }
  EXPECT_EQ(pool.statistics().steps, 6u);
  EXPECT_EQ(pool.statistics().placed, 0u);
}

}  // namespace
}  // namespace tessera
