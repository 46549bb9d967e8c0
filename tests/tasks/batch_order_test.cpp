// The order of batches: ends of epochs, several data sets, and a change of the number of ranks.
#include "tasks/batch_order.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/errors.h"
#include "tests/tasks/data_testing.h"

namespace tessera::tasks {
namespace {

// The sample numbers of `batches` batches of `size`, beginning at a position, which moves behind
// them.
std::vector<std::int64_t> numbers(const BatchOrder& order, DataPosition& position, int batches,
                                  std::int64_t size, std::int64_t ranks = 1) {
  std::vector<std::int64_t> all;
  for (int i = 0; i < batches; ++i) {
    const BatchOrder::Batch batch = order.at(position, size);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (const std::int64_t number : order.share(batch, rank * (size / ranks), size / ranks)) {
        all.push_back(number);
      }
    }
    order.advance(position, batch);
  }
  return all;
}

using Numbers = std::vector<std::int64_t>;

TEST(BatchOrder, ContinuesWithTheNextEpoch) {
  const BatchOrder order({.samples = {5}});
  DataPosition position = order.begin();
  EXPECT_EQ(numbers(order, position, 3, 4), (Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(position, (DataPosition{3, {12}}));
}

TEST(BatchOrder, EvenBatchesFillUpWithTheEpochsFirstSamples) {
  const BatchOrder order({.samples = {5}, .even_batches = true});
  DataPosition position = order.begin();
  EXPECT_EQ(numbers(order, position, 4, 4),
            (Numbers{0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 8, 9, 5, 6, 7}));
  const BatchOrder tiny({.samples = {3}, .even_batches = true});
  position = tiny.begin();
  EXPECT_EQ(numbers(tiny, position, 2, 4, 2), (Numbers{0, 1, 2, 0, 3, 4, 5, 3}));
}

TEST(BatchOrder, DropLastOmitsIncompleteBatches) {
  const BatchOrder order({.samples = {5}, .drop_last = true});
  DataPosition position = order.begin();
  EXPECT_EQ(numbers(order, position, 4, 2), (Numbers{0, 1, 2, 3, 5, 6, 7, 8}));
  EXPECT_NE(testing::error_of([&] { (void)order.at(position, 6); }, ErrorCode::data), "");
}

TEST(BatchOrder, RanksShareTheSamplesOfOneRank) {
  for (const bool even : {false, true}) {
    const BatchOrder order({.samples = {13, 7}, .seed = 3, .even_batches = even});
    DataPosition one = order.begin();
    DataPosition three = order.begin();
    EXPECT_EQ(numbers(order, one, 9, 6, 1), numbers(order, three, 9, 6, 3));
    EXPECT_EQ(one, three);
  }
}

// After some batches of 4, batches of 6 continue at the same sample: no sample of an epoch is
// repeated or missed.
TEST(BatchOrder, AnotherBatchSizeContinuesAtThePosition) {
  const BatchOrder order({.samples = {22}});
  DataPosition position = order.begin();
  Numbers all = numbers(order, position, 3, 4);
  for (const std::int64_t number : numbers(order, position, 3, 6)) all.push_back(number);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<std::int64_t>(i));
}

TEST(BatchOrder, SeveralDataSetsInTurn) {
  const BatchOrder order({.samples = {10, 4}, .mix = Mix::round_robin});
  DataPosition position = order.begin();
  EXPECT_EQ(numbers(order, position, 5, 3), (Numbers{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(position, (DataPosition{5, {9, 6}}));
}

TEST(BatchOrder, SeveralDataSetsBySizeAreDrawnByTheBatchsNumber) {
  const BatchOrder order({.samples = {3000, 1000}, .mix = Mix::by_size, .seed = 1});
  const BatchOrder other({.samples = {3000, 1000}, .mix = Mix::by_size, .seed = 2});
  DataPosition position = order.begin();
  std::map<std::size_t, int> drawn;
  int differs = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto batch = order.at(position, 1);
    drawn[batch.data_set] += 1;
    differs += batch.data_set != other.at(position, 7).data_set ? 1 : 0;
    order.advance(position, batch);
  }
  EXPECT_NEAR(drawn[0], 3000, 120);  // four standard deviations
  EXPECT_GT(differs, 1000);
}

}  // namespace
}  // namespace tessera::tasks
