// The memory pool: reuse, statistics, lifetimes across threads.
#include "engine/device/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/storage/storage.h"
#include "engine/tensor.h"

namespace tessera {
namespace {

TEST(MemoryPool, BlocksAreAlignedAndCounted) {
  const auto pool = MemoryPool::create();
  const auto small = pool->allocate(10);
  const auto large = pool->allocate(3'000'001);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small.get()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.get()) % 4096, 0u);
  EXPECT_EQ(pool->stats().in_use, 64u + 3'002'368u);
  EXPECT_EQ(pool->stats().system_allocations, 2u);
}

TEST(MemoryPool, AFreedBlockServesTheNextOfItsSize) {
  const auto pool = MemoryPool::create();
  for (int i = 0; i < 100; ++i) (void)pool->allocate(100'000);
  EXPECT_EQ(pool->stats().system_allocations, 1u);
  const auto near = pool->allocate(95'000);  // within an eighth
  EXPECT_EQ(pool->stats().system_allocations, 1u);
  const auto far = pool->allocate(50'000);
  EXPECT_EQ(pool->stats().system_allocations, 2u);
}

TEST(MemoryPool, KnowsItsPeakAndFreesOnTrim) {
  const auto pool = MemoryPool::create();
  {
    const auto a = pool->allocate(1 << 20);
    const auto b = pool->allocate(1 << 20);
  }
  EXPECT_EQ(pool->stats().peak_in_use, std::size_t{2} << 20);
  EXPECT_EQ(pool->stats().in_use, 0u);
  EXPECT_EQ(pool->stats().reserved, std::size_t{2} << 20);
  pool->reset_peak();
  EXPECT_EQ(pool->stats().peak_in_use, 0u);
  pool->trim();
  EXPECT_EQ(pool->stats().reserved, 0u);
}

TEST(MemoryPool, CountsByKindAndAtThePeak) {
  const auto pool = MemoryPool::create();
  const auto activation = pool->allocate(1000);
  {
    const MemoryScope outer(MemoryKind::other);
    const MemoryScope inner(MemoryKind::optimizer);
    auto moment = pool->allocate(100);
    EXPECT_EQ(pool->stats().use[MemoryKind::optimizer], 100u);
    std::thread([moment = std::move(moment)]() mutable { moment.reset(); }).join();
  }
  EXPECT_EQ(current_memory_kind(), MemoryKind::activations);
  const MemoryStats stats = pool->stats();
  EXPECT_EQ(stats.use[MemoryKind::optimizer], 0u);
  EXPECT_EQ(stats.use[MemoryKind::activations], 1000u);
  EXPECT_EQ(stats.use.rounding, 24u);
  EXPECT_EQ(stats.use.total(), stats.in_use);
  EXPECT_EQ(stats.at_peak[MemoryKind::optimizer], 100u);
  EXPECT_EQ(stats.at_peak[MemoryKind::activations], 1000u);
  EXPECT_EQ(stats.at_peak.total(), stats.peak_in_use);
}

TEST(MemoryPool, ReportsEachNewPeak) {
  const auto pool = MemoryPool::create();
  int peaks = 0;
  pool->set_on_peak([&] { ++peaks; });
  for (int i = 0; i < 3; ++i) (void)pool->allocate(1000);
  EXPECT_EQ(peaks, 1);
  const auto held = pool->allocate(64);
  (void)pool->allocate(1000);
  EXPECT_EQ(peaks, 2);
  pool->set_on_peak({});
  (void)pool->allocate(100'000);
  EXPECT_EQ(peaks, 2);
}

TEST(MemoryPool, ABlockReturnsToItsPoolFromAnotherThread) {
  const auto pool = MemoryPool::create();
  auto block = pool->allocate(1000);
  std::thread([block = std::move(block)]() mutable { block.reset(); }).join();
  EXPECT_EQ(pool->stats().in_use, 0u);
  (void)pool->allocate(1000);
  EXPECT_EQ(pool->stats().system_allocations, 1u);
}

TEST(MemoryPool, ABlockOutlivesTheHandleOfItsPool) {
  auto pool = MemoryPool::create();
  const std::weak_ptr<MemoryPool> watched = pool;
  auto block = pool->allocate(1000);
  pool.reset();
  ASSERT_FALSE(watched.expired());  // the block keeps it
  EXPECT_GE(watched.lock()->stats().in_use, 1000u);
  block.get()[999] = std::byte{1};
  block.reset();
  EXPECT_TRUE(watched.expired());  // and nothing else does
}

TEST(MemoryPool, ThreadsHaveTheirOwnUntilTheyShare) {
  const auto mine = MemoryPool::current();
  std::shared_ptr<MemoryPool> other;
  std::thread([&] { other = MemoryPool::current(); }).join();
  EXPECT_NE(mine, other);
  std::thread([&] {
    MemoryPool::set_current(mine);
    const auto before = mine->stats().in_use;
    const Tensor x = Tensor::empty({1000});
    EXPECT_EQ(mine->stats().in_use, before + 4032);
  }).join();
}

TEST(MemoryPool, ReportsTheRequestedSizeWhenMemoryIsUsedUp) {
  const auto pool = MemoryPool::create();
  try {
    (void)pool->allocate(std::size_t{1} << 60);
    FAIL() << "2^60 bytes were handed out";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("1152921504606846976"), std::string::npos);
  }
  EXPECT_EQ(pool->stats().in_use, 0u);
}

constexpr std::size_t mebibyte = std::size_t{1} << 20;

std::shared_ptr<Storage> discarded(std::size_t bytes) {
  auto storage = Storage::allocate(bytes, Device::cpu());
  std::memset(storage->data(), 7, bytes);
  storage->discard();
  return storage;
}

// A separate pool for a test of storages.
class OwnPool {
 public:
  OwnPool() { MemoryPool::set_current(pool_); }
  ~OwnPool() { MemoryPool::set_current(before_); }
  OwnPool(const OwnPool&) = delete;
  OwnPool& operator=(const OwnPool&) = delete;
  [[nodiscard]] MemoryPool& operator*() const { return *pool_; }
  [[nodiscard]] MemoryPool* operator->() const { return pool_.get(); }

 private:
  std::shared_ptr<MemoryPool> before_ = MemoryPool::current();
  std::shared_ptr<MemoryPool> pool_ = MemoryPool::create();
};

TEST(Discarding, DiscardedMemoryServesOthersAndCountsAsItsOwnKind) {
  const OwnPool pool;
  int peaks = 0;
  pool->set_on_peak([&] { ++peaks; });
  std::shared_ptr<Storage> storage;
  {
    const MemoryScope kind(MemoryKind::gradients);
    storage = discarded(mebibyte);
  }
  storage->discard();
  EXPECT_EQ(pool->stats().in_use, 0u);
  {
    const auto other = pool->allocate(mebibyte);
    EXPECT_EQ(pool->stats().use[MemoryKind::activations], mebibyte);
  }
  storage->restore();
  storage->restore();
  EXPECT_TRUE(storage->present());
  EXPECT_EQ(pool->stats().use[MemoryKind::gradients], mebibyte);
  EXPECT_EQ(peaks, 1);
  EXPECT_EQ(pool->stats().system_allocations, 1u);
  storage->discard();
  storage.reset();
  EXPECT_EQ(pool->stats().in_use, 0u);
}

TEST(Discarding, ReadingDiscardedMemoryGivesZeros) {
  const OwnPool pool;
  const auto storage = discarded(mebibyte);
  EXPECT_TRUE(storage->present());
  EXPECT_EQ(storage->data()[mebibyte - 1], std::byte{0});
  EXPECT_EQ(pool->stats().in_use, mebibyte);
}

TEST(Discarding, SmallMemoryStays) {
  const OwnPool pool;
  const auto storage = discarded(1000);
  EXPECT_EQ(storage->data()[0], std::byte{7});
  EXPECT_EQ(pool->stats().in_use, 1024u);
}

// While backward frees a forward's activations, its gradients reuse their pages: no new page is
// needed.
TEST(Discarding, RestoredMemoryTakesALargerFreeBlock) {
  const OwnPool pool;
  const auto gradient = discarded(3 * mebibyte);
  const auto kept = pool->allocate(6 * mebibyte);
  { const auto activations = pool->allocate(6 * mebibyte); }
  const MemoryStats before = pool->stats();
  gradient->restore();
  EXPECT_EQ(pool->stats().in_use, 9 * mebibyte) << "it counts with its own size";
  EXPECT_EQ(pool->stats().held, before.held);
  EXPECT_EQ(pool->stats().system_allocations, before.system_allocations);
  gradient->discard();
  const auto activations = pool->allocate(6 * mebibyte);
  EXPECT_EQ(pool->stats().held, before.held);
}

// But only if other memory that must be restored does not need the rest of the block.
TEST(Discarding, RestoredMemoryLeavesRoomForTheOthers) {
  const OwnPool pool;
  const auto first = discarded(3 * mebibyte);
  const auto second = discarded(3 * mebibyte);
  { const auto activations = pool->allocate(6 * mebibyte); }
  first->restore();
  second->restore();
  EXPECT_EQ(pool->stats().in_use, 6 * mebibyte);
  EXPECT_EQ(pool->stats().peak_in_use, 6 * mebibyte);
  EXPECT_EQ(pool->stats().held, 6 * mebibyte);
}

// Cached blocks give their pages to restored memory, the longest unused first, and get new pages
// when they are used again.
TEST(MemoryPool, HoldsNoMoreThanItsPeak) {
  constexpr std::size_t bytes = 4 * mebibyte;
  const OwnPool pool;
  const auto comes_and_goes = discarded(bytes);
  {
    const auto longer_unused = pool->allocate(2 * bytes);
    std::memset(longer_unused.get(), 7, 2 * bytes);
  }
  EXPECT_EQ(pool->stats().held, 2 * bytes) << "what was discarded gave its pages";
  const auto in_use = pool->allocate(bytes);
  EXPECT_EQ(pool->stats().peak_in_use, 2 * bytes);
  EXPECT_EQ(pool->stats().held, bytes) << "the block of two gave its pages to the third";
  const auto also = pool->allocate(bytes);
  EXPECT_EQ(pool->stats().held, 2 * bytes);
  EXPECT_EQ(pool->stats().peak_held, 2 * bytes);
  const auto again = pool->allocate(2 * bytes);
  EXPECT_EQ(again.get()[0], std::byte{0});
  EXPECT_EQ(pool->stats().held, 4 * bytes);
}

// Batches of alternating lengths.
TEST(MemoryPool, AlternatingLengthsHoldNoMoreEither) {
  constexpr std::size_t bytes = std::size_t{4} << 20;
  const auto pool = MemoryPool::create();
  for (int turn = 0; turn < 3; ++turn) {
    for (const std::size_t size : {2 * bytes, 3 * bytes}) {
      (void)pool->allocate(size);
      EXPECT_LE(pool->stats().held, 3 * bytes) << "turn " << turn;
    }
  }
  EXPECT_EQ(pool->stats().system_allocations, 2u);
}

// Steps with sentences: each has other lengths, and requests sizes that no other step requests. The
// memory does not grow from step to step, and once all lengths have occurred, a step needs no new
// pages.
TEST(MemoryPool, StepsOfManyLengthsShareTheirMemory) {
  std::mt19937 random(3);
  const auto pool = MemoryPool::create();
  std::size_t most = 0;  // in use at the same time, without rounding
  std::uint64_t allocations_before = 0;
  for (int step = 0; step < 400; ++step) {
    const std::size_t tokens = 700 + random() % 400;
    std::vector<std::shared_ptr<std::byte>> kept;
    std::size_t in_use = 0;
    for (int layer = 0; layer < 6; ++layer) {
      for (const std::size_t width : {384, 1152, 384, 384, 1536, 1536, 384}) {
        kept.push_back(pool->allocate(tokens * width * sizeof(float)));
        in_use += tokens * width * sizeof(float);
        (void)pool->allocate(tokens * width);  // freed at once
      }
    }
    most = std::max(most, in_use);
    if (step == 200) allocations_before = pool->stats().system_allocations;
  }
  EXPECT_LE(static_cast<double>(pool->stats().peak_held), 1.5 * static_cast<double>(most));
  EXPECT_LE(pool->stats().system_allocations, allocations_before + 20);
  EXPECT_LE(pool->stats().reserved, 2 * pool->stats().peak_held);
}

TEST(MemoryPool, OfOneSizeTheBlockFreedLastComesFirst) {
  const auto pool = MemoryPool::create();
  auto first = pool->allocate(5000);
  auto second = pool->allocate(5000);
  const std::byte* const last = first.get();
  second.reset();
  first.reset();
  EXPECT_EQ(pool->allocate(5000).get(), last);
}

// A source of three blocks of 100 bytes each.
class ThreeBlocks final : public MemorySource {
 public:
  [[nodiscard]] std::size_t granularity(std::size_t) const override { return 100; }
  [[nodiscard]] std::byte* take(std::size_t bytes) override {
    if (bytes > free_) return nullptr;
    free_ -= bytes;
    return memory_;
  }
  void give_back(std::byte*, std::size_t bytes) override { free_ += bytes; }
  [[nodiscard]] std::string shortage() const override {
    return ", " + std::to_string(free_) + " bytes left";
  }

 private:
  std::byte memory_[1] = {};
  std::size_t free_ = 300;
};

TEST(MemoryPool, FreesItsCacheBeforeItFails) {
  const auto source = std::make_shared<ThreeBlocks>();
  const auto pool = MemoryPool::create(source);
  auto small = pool->allocate(70);
  EXPECT_EQ(pool->stats().in_use, 100u);
  small.reset();
  const auto large = pool->allocate(300);  // only with the cached block
  EXPECT_EQ(pool->stats().reserved, 300u);
  try {
    (void)pool->allocate(1);
    FAIL() << "there was no more";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_NE(std::string(error.what())
                  .find("1 bytes asked for, 300 bytes in use by tensors, 0 "
                        "bytes left; use a smaller batch"),
              std::string::npos)
        << error.what();
  }
}

// Memory that one pool only caches is available to other pools and to direct users of the source.
TEST(MemoryPool, GivesItsCacheToOthers) {
  const auto source = std::make_shared<ThreeBlocks>();
  const auto hoarding = MemoryPool::create(source);
  const auto other = MemoryPool::create(source);
  const auto hoard = [&] { (void)hoarding->allocate(300); };
  hoard();
  EXPECT_EQ(hoarding->stats().reserved, 300u);
  { const auto block = other->allocate(300); }
  EXPECT_EQ(hoarding->stats().reserved, 0u);
  hoard();
  EXPECT_EQ(other->stats().reserved, 0u);
  EXPECT_EQ(source->take(300), nullptr);
  EXPECT_NE(source->obtain(300), nullptr);
  EXPECT_EQ(source->obtain(100), nullptr);
}

}  // namespace
}  // namespace tessera
