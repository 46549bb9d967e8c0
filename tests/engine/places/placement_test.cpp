// Static placement: blocks that live together do not overlap, and the range is hardly larger than
// what lives at the same time.
#include "engine/places/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tessera {
namespace {

// Every pair of blocks that live together has separate places inside the range.
void expect_separate(const std::vector<BlockLife>& blocks, const BlockPlaces& places) {
  ASSERT_EQ(places.offsets.size(), blocks.size());
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].end == BlockLife::never) {
      EXPECT_EQ(places.offsets[b], BlockPlaces::nowhere);
      continue;
    }
    EXPECT_LE(places.offsets[b] + blocks[b].bytes, places.bytes);
    for (std::size_t a = 0; a < b; ++a) {
      if (blocks[a].end == BlockLife::never || blocks[a].end <= b) continue;
      EXPECT_TRUE(places.offsets[a] + blocks[a].bytes <= places.offsets[b] ||
                  places.offsets[b] + blocks[b].bytes <= places.offsets[a])
          << "blocks " << a << " and " << b;
    }
  }
}

TEST(Placement, ABlockTakesThePlaceOfOneThatEnded) {
  const BlockPlaces places = place_blocks({{100, 1}, {60, 3}, {40, 3}});
  EXPECT_EQ(places.bytes, 100u);
  EXPECT_EQ(places.live_bytes, 100u);
  EXPECT_EQ(places.offsets[0], 0u);
}

TEST(Placement, BlocksThatOutliveTheStepGetNone) {
  const std::vector<BlockLife> blocks = {{64, 2}, {4096, BlockLife::never}, {64, 3}};
  const BlockPlaces places = place_blocks(blocks);
  expect_separate(blocks, places);
  EXPECT_EQ(places.bytes, 64u);
}

TEST(Placement, OfNoBlocksIsEmpty) {
  const BlockPlaces places = place_blocks({});
  EXPECT_EQ(places.bytes, 0u);
  EXPECT_EQ(places.live_bytes, 0u);
}

// A forward keeps blocks, and a backward frees them in the opposite order; both have temporaries.
TEST(Placement, OfAForwardAndItsBackwardReachesTheBound) {
  constexpr std::uint32_t layers = 12;
  std::vector<BlockLife> blocks;
  const auto add = [&](std::size_t bytes, std::uint32_t life) {
    blocks.push_back({bytes, static_cast<std::uint32_t>(blocks.size()) + life});
  };
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const std::uint32_t until_backward = 5 * (layers - layer);
    add(1024, until_backward - 0);
    add(4096, 2);
    add(2048, until_backward - 2);
  }
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    add(4096, 2);
    add(1024, 1);
  }
  const BlockPlaces places = place_blocks(blocks);
  expect_separate(blocks, places);
  EXPECT_EQ(places.bytes, places.live_bytes);
}

TEST(Placement, OfRandomLivesIsSeparateAndNearTheBound) {
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    std::vector<BlockLife> blocks;
    for (std::uint32_t i = 0; i < 300; ++i) {
      const std::uint32_t life = 1 + random() % (random() % 8 == 0 ? 200 : 6);
      blocks.push_back({64 * (1 + random() % 200), std::min(i + life, 300u)});
      if (random() % 50 == 0) blocks.back().end = BlockLife::never;
    }
    const BlockPlaces places = place_blocks(blocks);
    expect_separate(blocks, places);
    EXPECT_GE(places.bytes, places.live_bytes);
    EXPECT_LE(static_cast<double>(places.bytes), 1.15 * static_cast<double>(places.live_bytes));
  }
}

}  // namespace
}  // namespace tessera
