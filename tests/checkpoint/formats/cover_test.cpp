// Chunks must cover a tensor exactly once; otherwise an element that is not covered so is named.
#include "checkpoint/formats/cover.h"

#include <gtest/gtest.h>

#include <map>

#include "checkpoint/support.h"
#include "support/processor_time.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::Box;
using formats::cover_problem;

using Sizes = std::vector<std::int64_t>;

// Cuts the array again and again at random places.
std::vector<Box> random_tiling(const Sizes& shape, std::mt19937& random, int cuts) {
  std::vector<Box> boxes{{Sizes(shape.size(), 0), shape}};
  for (int i = 0; i < cuts; ++i) {
    Box& box = boxes[random() % boxes.size()];
    const std::size_t d = random() % shape.size();
    if (box.sizes[d] < 2) continue;
    const auto at = 1 + static_cast<std::int64_t>(random()) % (box.sizes[d] - 1);
    Box rest = box;
    rest.offsets[d] += at;
    rest.sizes[d] -= at;
    box.sizes[d] = at;
    boxes.push_back(rest);
  }
  return boxes;
}

// Counts how often each element is covered.
bool exactly_once(const Sizes& shape, const std::vector<Box>& boxes) {
  std::map<Sizes, int> count;
  for (const Box& box : boxes) {
    Sizes at = box.offsets;
    for (std::int64_t left = elements_of(box.sizes); left > 0; --left) {
      ++count[at];
      for (std::size_t d = shape.size(); d > 0; --d) {
        if (++at[d - 1] < box.offsets[d - 1] + box.sizes[d - 1]) break;
        at[d - 1] = box.offsets[d - 1];
      }
    }
  }
  for (const auto& [element, times] : count) {
    if (times != 1) return false;
  }
  return static_cast<std::int64_t>(count.size()) == elements_of(shape);
}

TEST(Cover, AgreesWithCounting) {
  std::mt19937 random(3);
  int wrong = 0;
  for (int round = 0; round < 600; ++round) {
    Sizes shape(1 + random() % 4);
    for (auto& size : shape) size = 1 + random() % 5;
    std::vector<Box> boxes = random_tiling(shape, random, 6);
    const std::size_t victim = random() % boxes.size();
    switch (random() % 4) {
      case 0:
        boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(victim));
        break;
      case 1:
        boxes.push_back(boxes[victim]);
        break;
      case 2: {  // moved within the array: the volume is right, the place is not
        const std::size_t d = random() % shape.size();
        boxes[victim].offsets[d] =
            static_cast<std::int64_t>(random()) % (shape[d] - boxes[victim].sizes[d] + 1);
        break;
      }
      default:
        break;
    }
    const bool right = exactly_once(shape, boxes);
    EXPECT_EQ(cover_problem(shape, boxes).empty(), right) << cover_problem(shape, boxes);
    wrong += right ? 0 : 1;
  }
  EXPECT_GT(wrong, 200);
}

TEST(Cover, NamesTheElement) {
  EXPECT_TRUE(has(cover_problem({4, 6}, {{{0, 0}, {2, 6}}, {{3, 0}, {1, 6}}}), "element [2, 0]"));
  EXPECT_TRUE(has(cover_problem({4, 6}, {{{0, 0}, {2, 6}}, {{3, 0}, {1, 6}}}), "in no chunk"));
  EXPECT_TRUE(has(cover_problem({4, 6}, {{{0, 0}, {4, 4}}, {{0, 3}, {4, 3}}}), "element [0, 3]"));
  EXPECT_TRUE(has(cover_problem({4, 6}, {{{0, 0}, {4, 4}}, {{0, 3}, {4, 3}}}), "more than one"));
  EXPECT_TRUE(has(cover_problem({4}, {{{0}, {5}}}), "out of"));
  EXPECT_TRUE(has(cover_problem({4}, {{{-1}, {5}}}), "out of"));
  EXPECT_TRUE(has(cover_problem({4}, {{{std::int64_t{1} << 62}, {std::int64_t{1} << 62}}}), "out"));
  EXPECT_TRUE(has(cover_problem({4}, {{{0, 0}, {4, 1}}}), "dimensions"));
  EXPECT_TRUE(has(cover_problem({4}, {}), "no chunk"));
  EXPECT_EQ(cover_problem({}, {{{}, {}}}), "");
  EXPECT_TRUE(has(cover_problem({}, {{{}, {}}, {{}, {}}}), "more than one"));
  EXPECT_EQ(cover_problem({0, 4}, {}), "");
}

TEST(Cover, TakesThousandsOfChunks) {
  std::vector<Box> boxes;
  for (std::int64_t row = 0; row < 200; ++row) {
    for (std::int64_t column = 0; column < 200; ++column) {
      boxes.push_back({{row * 3, column * 5}, {3, 5}});
    }
  }
  const double before = tessera::testing::own_processor_seconds();
  EXPECT_EQ(cover_problem({600, 1000}, boxes), "");
  EXPECT_LT(tessera::testing::own_processor_seconds() - before, 20);
}

}  // namespace
}  // namespace tessera::checkpoint
