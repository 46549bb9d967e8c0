// Free ranges of which a part at a given place is taken. tests/cuda/engine/arena_test.cpp has best
// fit and merging.
#include "engine/places/free_ranges.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(FreeRangesAt, APlaceIsTakenOnlyIfAllOfItIsFree) {
  FreeRanges ranges(1000);
  EXPECT_TRUE(ranges.take_at(100, 200));
  EXPECT_FALSE(ranges.take_at(0, 101));
  EXPECT_FALSE(ranges.take_at(299, 1));
  EXPECT_FALSE(ranges.take_at(900, 101));
  EXPECT_TRUE(ranges.take_at(0, 100));
  EXPECT_TRUE(ranges.take_at(300, 700));
  EXPECT_EQ(ranges.free_bytes(), 0u);
  ranges.give_back(100, 200);
  EXPECT_TRUE(ranges.take_at(100, 200));
}

TEST(FreeRangesAt, TheFreeEndIsKnown) {
  FreeRanges ranges(1000);
  EXPECT_EQ(ranges.free_before(1000), 1000u);
  ASSERT_TRUE(ranges.take_at(500, 100));
  EXPECT_EQ(ranges.free_before(1000), 400u);
  EXPECT_EQ(ranges.free_before(500), 500u);
  ASSERT_TRUE(ranges.take_at(900, 100));
  EXPECT_EQ(ranges.free_before(1000), 0u);
}

}  // namespace
}  // namespace tessera
