// When steps have places, and what happens to steps that differ.
#include "engine/places/step_places.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace tessera {
namespace {

using Grants = std::vector<StepPlaces::Grant>;

// A step that allocates blocks of these sizes, and frees them at its end, the last one first.
Grants take_step(StepPlaces& places, const std::vector<std::size_t>& sizes, bool whole = true) {
  places.settle();
  places.begin_step(0);
  Grants grants;
  for (const std::size_t bytes : sizes) grants.push_back(places.allocate(bytes));
  for (std::size_t i = sizes.size(); i-- > 0;) {
    places.free(grants[i].ticket);
    if (grants[i].offset) places.give_back(*grants[i].offset, sizes[i]);
  }
  places.end_step(whole);
  return grants;
}

std::size_t placed_blocks(const Grants& grants) {
  std::size_t count = 0;
  for (const auto& grant : grants) count += grant.offset ? 1 : 0;
  return count;
}

const std::vector<std::size_t> usual = {64, 128, 64};

TEST(StepPlaces, TheStepAfterTwoEqualOnesHasThem) {
  StepPlaces places;
  EXPECT_EQ(placed_blocks(take_step(places, {64, 64})), 0u);  // the first step creates more
  EXPECT_EQ(placed_blocks(take_step(places, usual)), 0u);
  EXPECT_EQ(placed_blocks(take_step(places, usual)), 0u);
  const Grants first = take_step(places, usual);
  EXPECT_EQ(placed_blocks(first), 3u);
  EXPECT_EQ(places.bytes(), 256u);
  const Grants second = take_step(places, usual);
  for (std::size_t i = 0; i < usual.size(); ++i) EXPECT_EQ(first[i].offset, second[i].offset);
  EXPECT_EQ(places.statistics().steps, 5u);
  EXPECT_EQ(places.statistics().placed, 2u);
  EXPECT_EQ(places.statistics().different, 0u);
}

StepPlaces placed_after_two_steps() {
  StepPlaces places;
  take_step(places, usual);
  take_step(places, usual);
  return places;
}

TEST(StepPlaces, AStepLeavesThemAtItsFirstOtherAllocation) {
  StepPlaces places = placed_after_two_steps();
  const Grants grants = take_step(places, {64, 192, 64, 64});
  EXPECT_TRUE(grants[0].offset);
  EXPECT_EQ(placed_blocks(grants), 1u);
  EXPECT_EQ(places.statistics().different, 1u);
  EXPECT_EQ(places.statistics().last.step, 3u);
  EXPECT_EQ(places.statistics().last.position, 1u);
  EXPECT_EQ(places.statistics().last.wanted, 192u);
  EXPECT_EQ(places.statistics().last.recorded, 128u);
  EXPECT_EQ(placed_blocks(take_step(places, usual)), 3u);  // they wait for the next usual step
}

TEST(StepPlaces, AStepThatIsLongerOrShorterIsDifferent) {
  StepPlaces places = placed_after_two_steps();
  EXPECT_EQ(placed_blocks(take_step(places, {64, 128, 64, 512})), 3u);
  EXPECT_EQ(places.statistics().last.recorded, 0u);
  EXPECT_EQ(placed_blocks(take_step(places, usual)), 3u);
  take_step(places, {64});
  EXPECT_EQ(places.statistics().last.wanted, 0u);
  EXPECT_EQ(places.statistics().last.recorded, 128u);
  EXPECT_EQ(places.statistics().different, 2u);
  EXPECT_EQ(places.statistics().placed, 1u);
}

TEST(StepPlaces, TwoDifferentStepsInARowEndThemAndOthersNeedMoreEqualSteps) {
  StepPlaces places = placed_after_two_steps();
  take_step(places, {64});
  take_step(places, {128});
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(placed_blocks(take_step(places, {256, 64})), 0u) << step;
    EXPECT_EQ(places.bytes(), 0u);
  }
  EXPECT_EQ(placed_blocks(take_step(places, {256, 64})), 2u);
}

// After expect_others() no step has the old places, and others
// come after two equal steps, however often.
TEST(StepPlaces, ExpectedOthersHaveNewOnesAfterTwoEqualSteps) {
  StepPlaces places;
  for (const std::vector<std::size_t>& sizes :
       {usual, {256, 64}, usual, {512, 64, 64}, {1024, 64}, {64}}) {
    places.expect_others();
    for (int step = 0; step < 5; ++step) {
      EXPECT_EQ(placed_blocks(take_step(places, sizes)), step < 2 ? 0u : sizes.size()) << step;
    }
  }
  EXPECT_EQ(places.statistics().different, 0u);
}

TEST(StepPlaces, ExpectedOthersWaitForTheLastBlock) {
  StepPlaces places = placed_after_two_steps();
  places.settle();
  places.begin_step(0);
  const auto kept = places.allocate(64);
  places.expect_others();
  places.end_step(true);
  EXPECT_EQ(placed_blocks(take_step(places, {192, 64})), 0u);
  EXPECT_GT(places.bytes(), 0u);
  places.free(kept.ticket);
  places.give_back(*kept.offset, 64);
  EXPECT_EQ(placed_blocks(take_step(places, {192, 64})), 0u);
  EXPECT_EQ(places.bytes(), 0u);
}

TEST(StepPlaces, AStepThatAnExceptionEndedIsNoPattern) {
  StepPlaces places;
  take_step(places, usual, false);
  take_step(places, usual, false);
  EXPECT_EQ(placed_blocks(take_step(places, usual)), 0u);
  EXPECT_EQ(placed_blocks(take_step(places, usual)), 0u);
  EXPECT_EQ(placed_blocks(take_step(places, usual)), 3u);
}

// A program that keeps a block of a placed step for longer than in the recorded ones.
TEST(StepPlaces, ABlockInUseIsNotGivenAway) {
  StepPlaces places = placed_after_two_steps();
  places.settle();
  places.begin_step(0);
  const auto kept = places.allocate(64);
  ASSERT_TRUE(kept.offset);
  for (const std::size_t bytes : {128u, 64u}) {
    const auto grant = places.allocate(bytes);
    places.free(grant.ticket);
    places.give_back(*grant.offset, bytes);
  }
  places.end_step(true);
  const Grants next = take_step(places, usual);
  EXPECT_FALSE(next[0].offset);
  EXPECT_EQ(placed_blocks(next), 2u);
  EXPECT_EQ(places.statistics().displaced, 1u);
  EXPECT_EQ(places.statistics().placed, 2u);
  EXPECT_FALSE(places.is_idle());
  places.free(kept.ticket);  // of an earlier step
  places.give_back(*kept.offset, 64);
  EXPECT_TRUE(places.is_idle());
  EXPECT_EQ(placed_blocks(take_step(places, usual)), 3u);
}

// The life is the longest of those seen.
TEST(StepPlaces, ABlockThatSometimesOutlivesItsStepGetsNone) {
  StepPlaces places;
  std::vector<StepPlaces::Ticket> kept;
  for (int step = 0; step < 3; ++step) {
    places.settle();
    places.begin_step(0);
    const auto one = places.allocate(64);
    const auto two = places.allocate(128);
    EXPECT_FALSE(one.offset);
    if (step == 1) {
      places.free(one.ticket);
    } else {
      kept.push_back(one.ticket);
    }
    places.free(two.ticket);
    if (two.offset) places.give_back(*two.offset, 128);
    places.end_step(true);
  }
  EXPECT_EQ(places.bytes(), 128u);
  EXPECT_EQ(places.needs().outside_bytes, 64u);
}

TEST(StepPlaces, NeedsAreKnownAfterOneStep) {
  StepPlaces places;
  EXPECT_EQ(places.needs().placed_bytes, 0u);
  places.begin_step(1000);
  const auto lasting = places.allocate(4096);
  const auto block = places.allocate(256);
  places.free(block.ticket);
  places.end_step(true);
  const StepNeeds needs = places.needs();
  EXPECT_EQ(needs.placed_bytes, 256u);
  EXPECT_EQ(needs.live_bytes, 256u);
  EXPECT_EQ(needs.outside_bytes, 1000u + 4096u);
  places.free(lasting.ticket);
}

}  // namespace
}  // namespace tessera
