// The places of parameters in a unit's flat buffer, and the shards of the ranks.
#include "sharding/memory/layout.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace tessera {
namespace {

ParameterSpec spec(const Shape& shape, DType compute = float32, bool trainable = true,
                   DType master = float32) {
  return {.name = "p",
          .shape = shape,
          .master_dtype = master,
          .compute_dtype = compute,
          .trainable = trainable};
}

// Odd sizes, one element, no elements, two dtypes, frozen between trainable ones.
std::vector<ParameterSpec> mixed() {
  return {spec({7, 13}),
          spec({1}),
          spec({33}, bfloat16),
          spec({5, 3}, float32, false),
          spec({0, 4}),
          spec({129}),
          spec({2}, bfloat16, false),
          spec({19, 5}, bfloat16),
          spec({3}, float64, true, float64)};
}

const std::vector<std::vector<ParameterSpec>>& examples() {
  static const std::vector<std::vector<ParameterSpec>> all{
      mixed(),
      {spec({1})},  // more ranks than elements
      {spec({0})},
      {},
      {spec({64}), spec({64})},  // exactly the granule of a shard
      {spec({1000, 3}, bfloat16)},
      {spec({10}, float32, false), spec({10}, bfloat16, false)},  // all frozen
      {spec({3}, float64, true, float64), spec({3}, bfloat16)},
  };
  return all;
}

// Parameters apart are cut by themselves: each shard has an equal part of them and of the others.
TEST(UnitLayout, CutsParametersApartByThemselves) {
  std::vector<ParameterSpec> parameters{spec({64, 64}), spec({128}), spec({64, 64}), spec({7})};
  for (const std::size_t i : {0, 2}) parameters[i].apart = true;
  const UnitLayout layout(parameters, 4);
  ASSERT_EQ(layout.segments().size(), 2u);
  EXPECT_TRUE(layout.segments()[0].apart);
  EXPECT_EQ(layout.segments()[0].share, 2048);
  EXPECT_EQ(layout.slots()[2].segment, 0);
  EXPECT_EQ(layout.slots()[3].segment, 1);
}

// No cut divides a block of a parameter, and its place is that of one shard.
TEST(UnitLayout, CutsBetweenBlocks) {
  std::vector<ParameterSpec> parameters{spec({50, 70}), spec({300}), spec({7}),
                                        spec({9}, bfloat16)};
  for (const std::size_t i : {0, 1, 3}) parameters[i].block = 256;
  const UnitLayout one(parameters, 1);
  ASSERT_EQ(one.segments().size(), 3u);
  for (const int shards : {1, 2, 3, 5}) {
    const UnitLayout layout(parameters, shards);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const UnitLayout::Slot& slot = layout.slots()[i];
      EXPECT_EQ(slot.range.first, one.slots()[i].range.first);
      EXPECT_EQ(slot.range.first % parameters[i].block, 0);
      const auto& segment = layout.segments()[static_cast<std::size_t>(slot.segment)];
      EXPECT_EQ(segment.share % parameters[i].block, 0);
      for (int shard = 0; shard < shards; ++shard)
        EXPECT_EQ(layout.local_of(slot, shard).first % parameters[i].block, 0);
    }
  }
}

TEST(UnitLayout, PlacesInASegmentDoNotDependOnShards) {
  for (const auto& parameters : examples()) {
    const UnitLayout one(parameters, 1);
    for (int shards = 2; shards <= 8; ++shards) {
      const UnitLayout many(parameters, shards);
      ASSERT_EQ(many.slots().size(), one.slots().size());
      for (std::size_t i = 0; i < one.slots().size(); ++i) {
        EXPECT_EQ(many.slots()[i].segment, one.slots()[i].segment);
        EXPECT_EQ(many.slots()[i].range.first, one.slots()[i].range.first);
        EXPECT_EQ(many.slots()[i].range.count, one.slots()[i].range.count);
      }
      // There is padding at each segment's end, smaller than the ranks' granules together.
      ASSERT_EQ(many.segments().size(), one.segments().size());
      for (std::size_t s = 0; s < one.segments().size(); ++s) {
        const std::size_t granules = 256u * static_cast<unsigned>(shards);
        EXPECT_EQ(many.segments()[s].bytes() % granules, 0u);
        EXPECT_EQ(many.segments()[s].bytes(),
                  (one.segments()[s].bytes() + granules - 1) / granules * granules);
      }
    }
  }
}

TEST(UnitLayout, ShardsAndParametersAreAligned) {
  for (const auto& parameters : examples()) {
    for (int shards = 1; shards <= 8; ++shards) {
      const UnitLayout layout(parameters, shards);
      EXPECT_EQ(layout.bytes(), layout.share_bytes() * static_cast<std::size_t>(shards));
      EXPECT_EQ(layout.share_bytes() % 256, 0u);
      EXPECT_EQ(layout.share_bytes() == 0, parameters.empty());
      for (const auto& slot : layout.slots()) {
        const auto& segment = layout.segments()[static_cast<std::size_t>(slot.segment)];
        const std::size_t at = segment.byte_offset + static_cast<std::size_t>(slot.range.first) *
                                                         size_of(segment.compute_dtype);
        EXPECT_EQ(at % 16, 0u);
        EXPECT_LE(at + static_cast<std::size_t>(slot.range.count) * size_of(segment.compute_dtype),
                  layout.bytes());
      }
    }
  }
}

// The exact norm sums a parameter in blocks of 32 elements: a shard must not begin inside one.
TEST(UnitLayout, ShardsOfAParameterBeginOnBlocks) {
  for (const auto& parameters : examples()) {
    for (int shards = 1; shards <= 8; ++shards) {
      const UnitLayout layout(parameters, shards);
      for (const auto& slot : layout.slots()) {
        for (int shard = 0; shard < shards; ++shard) {
          EXPECT_EQ(layout.local_of(slot, shard).first % 32, 0) << shards << " shards";
        }
      }
    }
  }
}

TEST(UnitLayout, SegmentsAreEqualInDtypeAndTrainability) {
  const UnitLayout layout(mixed(), 3);
  ASSERT_EQ(layout.segments().size(), 5u);
  bool frozen_seen = false;
  for (const auto& segment : layout.segments()) {  // trainable ones first
    frozen_seen = frozen_seen || !segment.trainable;
    EXPECT_EQ(segment.trainable, !frozen_seen);
  }
  for (const auto& slot : layout.slots()) {
    const auto& segment = layout.segments()[static_cast<std::size_t>(slot.segment)];
    EXPECT_EQ(segment.compute_dtype, slot.spec.compute_dtype);
    EXPECT_EQ(segment.master_dtype, slot.spec.master_dtype);
    EXPECT_EQ(segment.trainable, slot.spec.trainable);
  }
  // Segments are adjacent.
  std::size_t end = 0;
  for (const auto& segment : layout.segments()) {
    EXPECT_EQ(segment.byte_offset, end);
    end += static_cast<std::size_t>(segment.elements) * size_of(segment.compute_dtype);
  }
  EXPECT_EQ(end, layout.bytes());
}

TEST(UnitLayout, LocalRangesCoverOnce) {
  for (const auto& parameters : examples()) {
    for (int shards = 1; shards <= 8; ++shards) {
      const UnitLayout layout(parameters, shards);
      for (std::size_t s = 0; s < layout.segments().size(); ++s) {
        std::int64_t position = 0;
        for (int shard = 0; shard < shards; ++shard) {
          const ElementRange range = layout.local(static_cast<int>(s), shard);
          if (range.count == 0) continue;
          EXPECT_EQ(range.first, position);
          EXPECT_EQ(range.first % 32, 0);
          position = range.end();
        }
        EXPECT_EQ(position, layout.segments()[s].elements);
      }
      for (const auto& slot : layout.slots()) {
        std::int64_t position = 0;
        for (int shard = 0; shard < shards; ++shard) {
          const ElementRange part = layout.local_of(slot, shard);
          if (part.count == 0) {
            EXPECT_EQ(part.first, 0);
            continue;
          }
          EXPECT_EQ(part.first, position);
          position = part.end();
        }
        EXPECT_EQ(position, slot.spec.shape.elements());
      }
    }
  }
}

// In every segment all ranks have the same number of elements: of the trainable, the frozen, and
// those of each dtype.
TEST(UnitLayout, ShardsOfEachSegmentAreEqual) {
  for (const auto& parameters : examples()) {
    for (int shards = 1; shards <= 8; ++shards) {
      const UnitLayout layout(parameters, shards);
      for (int shard = 0; shard < shards; ++shard) {
        std::size_t bytes = 0;
        for (std::size_t s = 0; s < layout.segments().size(); ++s) {
          const auto& segment = layout.segments()[s];
          const std::int64_t count = layout.local(static_cast<int>(s), shard).count;
          EXPECT_EQ(count * shards, segment.elements);
          EXPECT_EQ(count, segment.share);
          EXPECT_EQ(static_cast<std::size_t>(count) * size_of(segment.compute_dtype) % 256, 0u);
          bytes += static_cast<std::size_t>(count) * size_of(segment.compute_dtype);
        }
        EXPECT_EQ(bytes, layout.share_bytes());
      }
    }
  }
}

// 32 * 128 trainable elements after a million frozen ones: each of 8 ranks has an eighth of them.
TEST(UnitLayout, SpreadsASmallTrainablePart) {
  const UnitLayout layout({spec({1000, 1000}, float32, false), spec({32, 128})}, 8);
  for (int shard = 0; shard < 8; ++shard) {
    EXPECT_EQ(layout.local_of(layout.slots()[1], shard).count, 32 * 128 / 8) << shard;
  }
}

TEST(UnitLayout, GapsAndParametersFillTheGradient) {
  for (const auto& parameters : examples()) {
    for (const int shards : {1, 3, 8}) {
      const UnitLayout layout(parameters, shards);
      std::vector<int> covered(static_cast<std::size_t>(layout.gradient_elements()));
      const auto cover = [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t i = first; i < first + count; ++i)
          ++covered.at(static_cast<std::size_t>(i));
      };
      for (const auto& slot : layout.slots()) {
        if (!slot.spec.trainable) continue;
        const auto& segment = layout.segments()[static_cast<std::size_t>(slot.segment)];
        cover(segment.gradient_offset + slot.range.first, slot.range.count);
      }
      for (const ElementRange& gap : layout.gradient_gaps()) {
        EXPECT_GT(gap.count, 0);
        cover(gap.first, gap.count);
      }
      EXPECT_EQ(covered, std::vector<int>(covered.size(), 1));
    }
  }
}

TEST(UnitLayout, FrozenParametersHaveNoGradient) {
  EXPECT_EQ(UnitLayout({spec({10}, float32, false)}, 2).gradient_elements(), 0);
  // Beside trainable ones they also take no space in the gradient.
  const UnitLayout both({spec({100}), spec({100'000}, float32, false)}, 2);
  EXPECT_EQ(both.gradient_elements(), 128);
}

// The dtype of a unit's gradients can represent those of every trainable segment.
TEST(UnitLayout, GradientsTakeTheWidestComputeDtype) {
  const auto dtype_of = [](std::vector<ParameterSpec> specs) {
    return UnitLayout(std::move(specs), 2).gradient_dtype();
  };
  EXPECT_EQ(dtype_of({spec({3}, bfloat16)}), bfloat16);
  EXPECT_EQ(dtype_of({spec({3}, bfloat16), spec({3}, float32)}), float32);
  EXPECT_EQ(dtype_of({spec({3}, float64, true, float64), spec({3}, float32)}), float64);
  EXPECT_EQ(dtype_of({spec({3}, bfloat16), spec({3}, float32, false)}), bfloat16);
  // Neither 16-bit type can represent the other.
  EXPECT_EQ(dtype_of({spec({3}, bfloat16), spec({3}, float16)}), float32);
  EXPECT_EQ(dtype_of({spec({3}, float16), spec({3}, bfloat16)}), float32);
  EXPECT_EQ(dtype_of({spec({3}, float32, false)}), float32);  // no gradient needs it
}

TEST(UnitLayout, RefusesZeroShards) {
  EXPECT_THROW(UnitLayout({spec({1})}, 0), std::logic_error);
}

TEST(ElementRanges, Intersect) {
  EXPECT_EQ(intersect({0, 10}, {5, 10}).first, 5);
  EXPECT_EQ(intersect({0, 10}, {5, 10}).count, 5);
  EXPECT_EQ(intersect({0, 5}, {5, 5}).count, 0);
  EXPECT_EQ(intersect({20, 5}, {0, 5}).count, 0);
  EXPECT_EQ(intersect({0, 100}, {7, 1}).count, 1);
}

}  // namespace
}  // namespace tessera
