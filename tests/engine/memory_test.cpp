// The memory pool: reuse, statistics, lifetimes across threads.
#include "engine/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/tensor.h"
#include "kernels/base/error.h"

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

TEST(MemoryPool, KnowsItsPeakAndGivesBackOnTrim) {
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

TEST(MemoryPool, TellsOfEachNewPeak) {
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
  const auto block = pool->allocate(1000);
  pool.reset();
  block.get()[999] = std::byte{1};
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

TEST(MemoryPool, SaysHowMuchWasAskedForWhenThereIsNoMore) {
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

TEST(MemoryPool, ADiscardedBlockHoldsNothingAndIsZero) {
  constexpr std::size_t bytes = std::size_t{4} << 20;
  const auto pool = MemoryPool::create();
  int peaks = 0;
  pool->set_on_peak([&] { ++peaks; });
  auto block = pool->allocate(bytes);
  std::memset(block.get(), 7, bytes);
  ASSERT_TRUE(MemoryPool::discard(block));
  EXPECT_TRUE(MemoryPool::discard(block));
  EXPECT_EQ(pool->stats().in_use, 0u);
  EXPECT_EQ(pool->stats().held, 0u);
  EXPECT_EQ(pool->stats().reserved, bytes);
  std::vector<unsigned char> resident(bytes / 4096);
  ASSERT_EQ(mincore(block.get(), bytes, resident.data()), 0);
  EXPECT_EQ(std::count(resident.begin(), resident.end(), 0), bytes / 4096);
  EXPECT_EQ(block.get()[bytes - 1], std::byte{0});
  MemoryPool::restore(block);
  MemoryPool::restore(block);
  EXPECT_EQ(pool->stats().in_use, bytes);
  EXPECT_EQ(pool->stats().held, bytes);
  EXPECT_EQ(peaks, 1);
  ASSERT_TRUE(MemoryPool::discard(block));
  block.reset();
  EXPECT_EQ(pool->stats().in_use, 0u);
  block = pool->allocate(bytes);  // the same one
  EXPECT_EQ(pool->stats().held, bytes);
  EXPECT_EQ(pool->stats().system_allocations, 1u);
}

TEST(MemoryPool, SmallBlocksAreNotDiscarded) {
  const auto pool = MemoryPool::create();
  const auto block = pool->allocate(1000);
  block.get()[0] = std::byte{7};
  EXPECT_FALSE(MemoryPool::discard(block));
  EXPECT_EQ(block.get()[0], std::byte{7});
  EXPECT_EQ(pool->stats().in_use, 1024u);
}

// What is kept for later gives its pages to what comes back, the longest unused first, and gets new
// ones when it is used.
TEST(MemoryPool, NoMoreIsHeldThanWasInUseAtOnce) {
  constexpr std::size_t bytes = std::size_t{4} << 20;
  const auto pool = MemoryPool::create();
  const auto comes_and_goes = pool->allocate(bytes);
  ASSERT_TRUE(MemoryPool::discard(comes_and_goes));
  {
    const auto longer_unused = pool->allocate(2 * bytes);
    std::memset(longer_unused.get(), 7, 2 * bytes);
  }
  const auto in_use = pool->allocate(bytes);
  EXPECT_EQ(pool->stats().peak_in_use, 2 * bytes);
  EXPECT_EQ(pool->stats().held, bytes) << "the block of two gave its pages to the third";
  MemoryPool::restore(comes_and_goes);
  EXPECT_EQ(pool->stats().held, 2 * bytes);
  EXPECT_EQ(pool->stats().peak_held, 2 * bytes);
  const auto again = pool->allocate(2 * bytes);
  EXPECT_EQ(again.get()[0], std::byte{0});
  EXPECT_EQ(pool->stats().held, 4 * bytes);
  EXPECT_EQ(pool->stats().system_allocations, 3u);
}

// Batches of lengths that take turns.
TEST(MemoryPool, WhatComesBackToItsPagesHoldsNoMoreEither) {
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

// Steps of sentences: each has other lengths, and none asks for the sizes of another. Neither does
// memory grow from step to step, nor does a step, once all lengths were seen, need new pages.
TEST(MemoryPool, StepsOfManyLengthsShareTheirMemory) {
  std::mt19937 random(3);
  const auto pool = MemoryPool::create();
  std::size_t most = 0;  // in use at once, without rounding
  std::uint64_t allocations_before = 0;
  for (int step = 0; step < 400; ++step) {
    const std::size_t tokens = 700 + random() % 400;
    std::vector<std::shared_ptr<std::byte>> kept;
    std::size_t in_use = 0;
    for (int layer = 0; layer < 6; ++layer) {
      for (const std::size_t width : {384, 1152, 384, 384, 1536, 1536, 384}) {
        kept.push_back(pool->allocate(tokens * width * sizeof(float)));
        in_use += tokens * width * sizeof(float);
        (void)pool->allocate(tokens * width);  // gone at once
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

TEST(MemoryPool, GivesItsCacheBackBeforeItFails) {
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

// What one pool only keeps for later another can have, and so can those who take from the source.
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
