// Conversations in rows of batches: what is cut and left out, which share a row, and their places.
#include "tasks/instructions/conversation_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/support/errors.h"
#include "tests/tasks/instructions/conversations_testing.h"

namespace tessera::tasks {
namespace {

// Prompts and completions of 3 to 16 letters in all.
std::vector<PromptLengths> many_lengths(int count) {
  std::vector<PromptLengths> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back({1 + i * 5 % 9, 2 + i * 3 % 6});
  return lengths;
}

std::vector<std::int64_t> numbers_from(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

TEST(ConversationSamples, AConversationIsPaddedAndOnlyItsCompletionCounts) {
  const DataFolder folder;
  const ConversationSamples samples(
      byte_conversations(folder, R"({"prompt": "ab", "completion": "cd"})"
                                 "\n"
                                 R"({"prompt": "x", "completion": "y"})"
                                 "\n"),
      {.seq_len = 8, .shuffle = false, .padding_id = 7});
  const auto batch = samples.batch(numbers_from(0, 2));
  EXPECT_EQ(batch->length, 4);  // abcd, which predicts bcd and a newline
  EXPECT_EQ(batch->inputs, (std::vector<std::int32_t>{'a', 'b', 'c', 'd', 'x', 'y', 7, 7}));
  EXPECT_EQ(batch->targets,
            (std::vector<std::int32_t>{-100, 'c', 'd', '\n', 'y', '\n', -100, -100}));
  EXPECT_TRUE(batch->starts.empty());
  EXPECT_EQ(batch->weight, 5);
  EXPECT_EQ(batch->tokens, 6);
}

TEST(ConversationSamples, PackedRowsSayWhereTheirConversationsBegin) {
  const DataFolder folder;
  const ConversationSamples samples(
      byte_conversations(folder, prompt_lines({{1, 2}, {2, 3}, {3, 2}})),
      {.seq_len = 7, .packing = true, .shuffle = false});
  ASSERT_EQ(samples.samples_per_epoch(), 2);
  // The first of the longest ones takes the first row, of which 3 places are left: the last one
  // needs 4.
  const auto batch = samples.batch(numbers_from(0, 2));
  EXPECT_EQ(batch->length, 7);
  EXPECT_EQ(batch->starts, (std::vector<std::int32_t>{0, 0, 2, 2, 2, 2, 6, 0, 0, 0, 0, 4, 4, 4}));
  EXPECT_EQ(batch->tokens, 10);
}

TEST(ConversationSamples, WhatIsTooLongIsCutAtItsEndAndWhatHasNoLossIsLeftOut) {
  const DataFolder folder;
  const auto corpus =
      byte_conversations(folder, prompt_lines({{2, 3}, {20, 3}, {6, 5}, {7, 4}, {8, 9}}));
  const ConversationSamples samples(corpus, {.seq_len = 7, .shuffle = false});
  // The second one is cut within its prompt, and the last one where its completion begins.
  EXPECT_EQ(samples.samples_per_epoch(), 3);
  EXPECT_EQ(samples.counts().conversations, 5);
  EXPECT_EQ(samples.counts().left_out, 2);
  EXPECT_EQ(samples.counts().cut, 2);
  EXPECT_EQ(samples.counts().cut_tokens, 3 + 3);
  EXPECT_EQ(samples.counts().places, 4 + 7 + 7);
  EXPECT_EQ(samples.rows_of(2)[0], 3);
  EXPECT_EQ(samples.batch(numbers_from(2, 1))->weight, 1);
  const std::string line = testing::error_of(
      [&] { const ConversationSamples none(corpus, {.seq_len = 1}); }, ErrorCode::data);
  EXPECT_NE(line.find("none of 5 conversations has a token in the loss within the first 2"),
            std::string::npos)
      << line;
}

TEST(ConversationSamples, EachConversationIsOnceInEveryEpoch) {
  const DataFolder folder;
  const auto corpus = byte_conversations(folder, prompt_lines(many_lengths(200)));
  for (const bool packing : {false, true}) {
    for (const bool shuffle : {false, true}) {
      const ConversationSamples samples(
          corpus, {.seq_len = 24, .packing = packing, .shuffle = shuffle, .seed = 3});
      const std::int64_t epoch = samples.samples_per_epoch();
      std::vector<std::vector<std::int32_t>> orders;
      for (std::int64_t first = 0; first < 3 * epoch; first += epoch) {
        std::vector<std::int32_t> rows;
        for (std::int64_t i = first; i < first + epoch; ++i) {
          std::int64_t places = 0;
          for (const std::int32_t row : samples.rows_of(i)) {
            rows.push_back(row);
            places += corpus->tokens(row) - 1;
          }
          EXPECT_LE(places, 24);
        }
        EXPECT_EQ(std::set<std::int32_t>(rows.begin(), rows.end()).size(), 200U);
        EXPECT_EQ(rows.size(), 200U);
        orders.push_back(std::move(rows));
      }
      EXPECT_EQ(orders[0] != orders[1], shuffle);
      EXPECT_EQ(orders[1] != orders[2], shuffle);
      if (!packing) continue;
      const double filled =
          static_cast<double>(samples.counts().places) / static_cast<double>(24 * epoch);
      EXPECT_GT(filled, 0.95);
    }
  }
}

TEST(ConversationSamples, AllTokensMayCount) {
  const DataFolder folder;
  const ConversationSamples samples(byte_conversations(folder,
                                                       R"({"prompt": "ab", "completion": "c"})"
                                                       "\n",
                                                       LossOn::all),
                                    {.seq_len = 8, .shuffle = false});
  EXPECT_EQ(samples.batch(numbers_from(0, 1))->targets,
            (std::vector<std::int32_t>{'b', 'c', '\n'}));
}

}  // namespace
}  // namespace tessera::tasks
