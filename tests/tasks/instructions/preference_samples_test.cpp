// Pairs in rows of batches: their places, what is cut and left out, and their order.
#include "tasks/instructions/preference_samples.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tests/support/errors.h"
#include "tests/tasks/instructions/preferences_testing.h"

namespace tessera::tasks {
namespace {

std::vector<std::int64_t> first_samples(std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(PreferenceSamples, ChosenAnswersComeFirstAndPromptsDoNotCount) {
  const DataFolder folder;
  const PreferenceSamples samples(
      byte_pairs(folder, R"({"prompt": "ab", "chosen": "cd", "rejected": "e"})"
                         "\n"
                         R"({"chosen": "xyz", "rejected": "xw"})"
                         "\n"),
      {.seq_len = 8, .shuffle = false, .padding_id = 7});
  const auto batch = samples.batch(first_samples(2));
  EXPECT_EQ(batch->length, 4);  // abcd, which predicts bcd and a newline
  EXPECT_EQ(batch->inputs, (std::vector<std::int32_t>{'a', 'b', 'c', 'd', 'x', 'y', 'z', 7,  //
                                                      'a', 'b', 'e', 7, 'x', 'w', 7, 7}));
  EXPECT_EQ(batch->targets,
            (std::vector<std::int32_t>{-100, 'c', 'd', '\n', 'y', 'z', '\n', -100,  //
                                       -100, 'e', '\n', -100, 'w', '\n', -100, -100}));
  EXPECT_EQ(batch->counts, (std::vector<float>{3, 3, 2, 2}));
  EXPECT_EQ(batch->weight, 2);
  EXPECT_EQ(batch->tokens, 4 + 3 + 3 + 2);
}

TEST(PreferenceSamples, WhatIsTooLongIsCutAndWhatHasNoDifferenceIsLeftOut) {
  const DataFolder folder;
  std::string lines = pair_lines({{2, 3, 4}, {20, 3, 2}, {6, 5, 2}, {7, 2, 9}});
  lines += R"({"prompt": "ab", "chosen": "cd", "rejected": "cd"})"
           "\n"
           R"({"prompt": "ab", "chosen": "", "rejected": "cd"})"
           "\n"
           R"({"prompt": "ab", "chosen": "cdefghij", "rejected": "cdefghkl"})"  // beyond seq_len
           "\n";
  const auto corpus = byte_pairs(folder, lines);
  const PreferenceSamples samples(corpus, {.seq_len = 7, .shuffle = false});
  EXPECT_EQ(samples.samples_per_epoch(), 3);
  const auto counts = samples.counts();
  EXPECT_EQ(counts.pairs, 7);
  EXPECT_EQ(counts.without_answer, 2);
  EXPECT_EQ(counts.without_difference, 2);
  EXPECT_EQ(counts.cut, 2);
  EXPECT_EQ(counts.cut_tokens, 3 + 1 + 8);
  EXPECT_EQ(counts.places, 4 + 5 + 7 + 7 + 7 + 7);
  EXPECT_EQ(samples.pair_of(1), 2);
  const std::string line = testing::error_of(
      [&] { const PreferenceSamples none(corpus, {.seq_len = 1}); }, ErrorCode::data);
  EXPECT_NE(line.find("none of 7 pairs has two different answers within the first 2"),
            std::string::npos)
      << line;
}

TEST(PreferenceSamples, EachPairIsOnceInEveryEpoch) {
  const DataFolder folder;
  std::vector<PairLengths> lengths;
  for (int i = 0; i < 50; ++i) lengths.push_back({1 + i * 5 % 9, 2 + i * 3 % 6, 3 + i % 4});
  const auto corpus = byte_pairs(folder, pair_lines(lengths));
  for (const bool shuffle : {false, true}) {
    const PreferenceSamples samples(corpus, {.seq_len = 24, .shuffle = shuffle, .seed = 3});
    std::vector<std::vector<std::int32_t>> orders;
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      std::vector<std::int32_t> pairs;
      for (std::int64_t i = 0; i < 50; ++i) pairs.push_back(samples.pair_of(epoch * 50 + i));
      EXPECT_EQ(std::set<std::int32_t>(pairs.begin(), pairs.end()).size(), 50U);
      orders.push_back(std::move(pairs));
    }
    EXPECT_EQ(orders[0] != orders[1], shuffle);
  }
}

}  // namespace
}  // namespace tessera::tasks
