// Random numbers depend on seed, step, sample and element, never on the rank.
#include "engine/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/nn/module.h"
#include "engine/ops.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;

// Runs `function` on all rows of x at once and on the two halves as two ranks would; both must give
// the same numbers.
void expect_independent_of_the_split(const std::function<Tensor(const Tensor&)>& function,
                                     const Shape& sample) {
  const std::int64_t rows = 6;
  const auto make = [&](std::int64_t first, std::int64_t count) {
    std::vector<std::int64_t> sizes{count};
    for (const std::int64_t size : sample.sizes()) sizes.push_back(size);
    std::vector<float> numbers;
    for (std::int64_t i = 0; i < count * sample.elements(); ++i) {
      numbers.push_back(0.1f + 0.01f * static_cast<float>(first * sample.elements() + i));
    }
    begin_batch({.step = 9, .first_sample = 12 + first, .samples = count});
    return function(Tensor::from(numbers, Shape(std::span<const std::int64_t>(sizes)))).to_vector();
  };
  const Numbers whole = make(0, rows);
  Numbers parts = make(0, 2);
  const Numbers rest = make(2, 4);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, whole);
}

TEST(Random, DropoutDoesNotDependOnHowABatchIsSplitOverRanks) {
  manual_seed(4);
  expect_independent_of_the_split([](const Tensor& x) { return dropout(dropout(x, 0.5), 0.2); },
                                  {5, 3});
  // Rows merged with the next dimension, as some modules do.
  expect_independent_of_the_split(
      [](const Tensor& x) {
        return dropout(reshape(x, {x.size(0) * 5, 3}), 0.5);
      },
      {5, 3});
}

TEST(Random, AttentionDropoutDoesNotDependOnHowABatchIsSplitOverRanks) {
  manual_seed(4);
  expect_independent_of_the_split(
      [](const Tensor& x) {
        return packed_attention(x, {.heads = 2, .causal = true, .dropout = 0.4});
      },
      {7, 12});
}

TEST(Random, DropoutKeepsTheExpectationAndDiffersByOpStepAndSeed) {
  manual_seed(1);
  const Tensor x = Tensor::full({4, 5000}, 1);
  const auto draw = [&](std::uint64_t step) {
    begin_batch({.step = step, .first_sample = 0, .samples = 4});
    return dropout(x, 0.25).to_vector();
  };
  const Numbers first = draw(0);
  double mean = 0;
  for (const double value : first) {
    EXPECT_TRUE(value == 0 || std::abs(value - 4.0 / 3.0) < 1e-6) << value;
    mean += value / 20000;
  }
  EXPECT_NEAR(mean, 1.0, 0.02);
  EXPECT_NE(dropout(x, 0.25).to_vector(), first);  // the next op in the same step
  EXPECT_EQ(draw(0), first);
  EXPECT_NE(draw(1), first);
  manual_seed(2);
  EXPECT_NE(draw(0), first);
}

TEST(Random, WithoutABatchPositionEveryDropoutDraws) {
  manual_seed(1);
  const Tensor x = Tensor::full({2, 100}, 1);
  EXPECT_NE(dropout(x, 0.5).to_vector(), dropout(x, 0.5).to_vector());
}

// A loop that reads its own data and gives no position: the parts of a batch, one per rank, get the
// draws of the whole batch, so each part gets different ones.
TEST(Random, WithoutABatchPositionAPartDrawsItsRowsOfTheWhole) {
  const auto draw = [](std::int64_t part, std::int64_t rows) {
    manual_seed(4);
    set_batch_part(part);
    manual_seed(7);  // does not change the part
    std::vector<Numbers> drawn;
    drawn.push_back(dropout(Tensor::full({rows, 5, 3}, 1), 0.5).to_vector());
    drawn.push_back(dropout(Tensor::full({rows * 5, 3}, 1), 0.5).to_vector());
    // All values are 1, so this is the sum of the kept probabilities.
    drawn.push_back(
        packed_attention(Tensor::full({rows, 9, 6}, 1), {.heads = 2, .dropout = 0.4}).to_vector());
    std::vector<std::int32_t> starts, slots;
    for (std::int32_t i = 0; i < rows; ++i) {
      starts.push_back(3 * i);
      for (std::int32_t t = 0; t < 3; ++t) slots.push_back(4 * i + t);
    }
    const Sequences sequences{
        Tensor::from(starts, {rows}),
        Tensor::from(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 3), {rows}),
        Tensor::from(slots, {3 * rows}), 3, 4};
    drawn.push_back(sequence_dropout(Tensor::full({3 * rows, 8}, 1), 0.5, sequences).to_vector());
    set_batch_part(0);
    return drawn;
  };
  const auto whole = draw(0, 6);
  for (std::size_t op = 0; op < whole.size(); ++op) {
    Numbers parts;
    for (std::int64_t part = 0; part < 3; ++part) {
      const Numbers mine = draw(part, 2)[op];
      parts.insert(parts.end(), mine.begin(), mine.end());
    }
    EXPECT_EQ(parts, whole[op]) << op;
    EXPECT_NE(draw(1, 2)[op], draw(0, 2)[op]) << op;
  }
  EXPECT_THROW(set_batch_part(-1), std::logic_error);
}

TEST(Random, ABatchPositionAppliesToEveryPart) {
  const auto draw = [](std::int64_t part) {
    manual_seed(4);
    set_batch_part(part);
    begin_batch({.step = 1, .first_sample = 2, .samples = 2});
    const Numbers drawn = dropout(Tensor::full({2, 50}, 1), 0.5).to_vector();
    set_batch_part(0);
    return drawn;
  };
  EXPECT_EQ(draw(0), draw(3));
}

// Several windows of each sample: the windows of one rank are not those of the next.
TEST(Random, AttentionOfWindowsDoesNotDependOnHowABatchIsSplitOverRanks) {
  manual_seed(4);
  expect_independent_of_the_split(
      [](const Tensor& x) {
        return packed_attention(reshape(x, {x.size(0) * 3, 7, 12}), {.heads = 2, .dropout = 0.4});
      },
      {3, 7, 12});
}

TEST(Random, AShardOfAParameterIsInitialisedLikeThatPartOfTheWhole) {
  for (const DType dtype : {float32, bfloat16, float64}) {
    for (const Initializer& kind : {nn::normal(0.5, 2), nn::uniform(-3, 1), nn::constant(4)}) {
      manual_seed(21);
      (void)nn::make_parameter({3}, kind, dtype);  // so that the stream is not the first
      const Tensor whole = nn::make_parameter({7, 11}, kind, dtype);
      const Numbers numbers = whole.to_vector();
      ASSERT_NE(whole.impl()->initializer, nullptr);
      for (const auto& [first, count] : {std::pair{0, 77}, {1, 5}, {30, 33}, {76, 1}, {5, 0}}) {
        Tensor shard = Tensor::empty({count}, dtype);
        whole.impl()->initializer->fill(shard.data(), dtype, first, count);
        EXPECT_EQ(shard.to_vector(),
                  Numbers(numbers.begin() + first, numbers.begin() + first + count))
            << name_of(dtype) << " from " << first;
      }
    }
  }
}

TEST(Random, ParametersDrawFromTheirNumberAndTheSeed) {
  const auto draw = [](std::uint64_t seed) {
    manual_seed(seed);
    const Tensor a = nn::make_parameter({50}, nn::normal(0, 1));
    const Tensor b = nn::make_parameter({50}, nn::normal(0, 1));
    return std::pair{a.to_vector(), b.to_vector()};
  };
  const auto first = draw(1);
  EXPECT_EQ(draw(1), first);
  EXPECT_NE(first.first, first.second);
  EXPECT_NE(draw(2).first, first.first);
}

TEST(Random, AParameterOnMetaDrawsTheSameWhenItIsMaterialised) {
  manual_seed(8);
  const Tensor real = nn::make_parameter({64}, nn::normal(0, 1));
  manual_seed(8);
  const DeviceGuard meta(Device::meta());
  const Tensor deferred = nn::make_parameter({64}, nn::normal(0, 1));
  Tensor filled = Tensor::empty({64}, float32, Device::cpu());
  deferred.impl()->initializer->fill(filled.data(), float32, 0, 64);
  EXPECT_EQ(filled.to_vector(), real.to_vector());
}

}  // namespace
}  // namespace tessera
