// Texts to embeddings: in batches of similar length, the same in any batches, tokenized ahead.
#include "tasks/encoding.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "base/error.h"
#include "engine/random.h"
#include "tasks/encoding_testing.h"

namespace tessera::tasks {
namespace {

using testing::byte_tokens;
using testing::ByteEncoder;
using testing::numbered_texts;

std::vector<std::string_view> views_of(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

TEST(Encoding, BatchesHaveTextsOfSimilarLengthAndEachTextOnce) {
  const auto texts = numbered_texts(23, 1);
  std::vector<std::vector<double>> lengths;
  const Encode encode = [&](const models::TokenBatch& tokens) {
    lengths.push_back(tokens.lengths.to_vector());
    EXPECT_EQ(tokens.ids.dtype(), int32);
    EXPECT_EQ(tokens.ids.shape(), (Shape{static_cast<std::int64_t>(lengths.back().size()),
                                         static_cast<std::int64_t>(lengths.back().front())}));
    return Tensor::zeros({tokens.ids.size(0), 2});
  };
  std::map<std::size_t, int> seen;
  encode_texts(views_of(texts), byte_tokens(), encode, {.batch_size = 5},
               [&](std::size_t text, std::span<const float> row) {
                 EXPECT_EQ(row.size(), 2u);
                 ++seen[text];
               });
  EXPECT_EQ(seen.size(), texts.size());
  for (const auto& [text, times] : seen) EXPECT_EQ(times, 1) << text;
  ASSERT_EQ(lengths.size(), 5u);
  double before = 1000;
  for (const auto& batch : lengths) {
    for (const double length : batch) {
      EXPECT_LE(length, before);
      before = length;
    }
  }
}

TEST(Encoding, RowsAreTheSameInAnyBatch) {
  manual_seed(2);
  const ByteEncoder net;
  const auto texts = numbered_texts(40, 2);
  const auto rows = [&](std::int64_t batch_size) {
    std::map<std::size_t, std::vector<float>> all;
    encode_texts(
        views_of(texts), byte_tokens(12),
        [&](const models::TokenBatch& tokens) { return net.forward(tokens); },
        {.batch_size = batch_size},
        [&](std::size_t text, std::span<const float> row) {
          all[text].assign(row.begin(), row.end());
        });
    return all;
  };
  const auto one = rows(1);
  for (const std::int64_t batch_size : {7, 40, 100}) EXPECT_EQ(rows(batch_size), one);
}

TEST(Encoding, RunsTheRequestedNumberOfForwards) {
  const auto texts = numbered_texts(3, 1);
  int forwards = 0, taken = 0;
  encode_texts(
      views_of(texts), byte_tokens(),
      [&](const models::TokenBatch& tokens) {
        ++forwards;
        return Tensor::zeros({tokens.ids.size(0), 2});
      },
      {.batch_size = 2, .batches = 7}, [&](std::size_t, std::span<const float>) { ++taken; });
  EXPECT_EQ(forwards, 7);
  EXPECT_EQ(taken, 3);
}

// A tokenizer that records its thread, and that can fail.
class WatchedTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string_view name() const override { return "watched"; }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return 256; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    if (text == "bad") fail(ErrorCode::data, "no such text");
    elsewhere_ = std::this_thread::get_id() != made_on_;
    return {1};
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t>) const override { return {}; }
  [[nodiscard]] bool elsewhere() const { return elsewhere_; }

 private:
  std::thread::id made_on_ = std::this_thread::get_id();
  mutable std::atomic<bool> elsewhere_ = false;
};

TEST(Encoding, TokenizesOnAThreadOfItsOwnAndPassesErrorsOn) {
  const auto tokenizer = std::make_shared<WatchedTokenizer>();
  const Encode encode = [](const models::TokenBatch& tokens) {
    return Tensor::zeros({tokens.ids.size(0), 2});
  };
  const std::vector<std::string_view> good{"a", "b"};
  encode_texts(good, {tokenizer, 0}, encode, {}, [](std::size_t, std::span<const float>) {});
  EXPECT_TRUE(tokenizer->elsewhere());
  const std::vector<std::string_view> bad{"good", "bad", "good"};
  EXPECT_THROW(encode_texts(bad, {tokenizer, 0}, encode, {.batch_size = 1},
                            [](std::size_t, std::span<const float>) {}),
               Error);
}

TEST(Encoding, LowerCaseEqualsPythons) {
  const TextTokens tokens{std::make_shared<ByteTokenizer>(), 0, true};
  const ByteTokenizer bytes;
  EXPECT_EQ(tokens.sequence("A LINE of Words 12"), bytes.encode("a line of words 12"));
  EXPECT_EQ(tokens.sequence("ÄÖÜ ΟΔΟΣ İ"), bytes.encode("äöü οδος i\xcc\x87"));
}

TEST(Encoding, ATextWithoutTokensIsRefused) {
  EXPECT_THROW((void)make_token_batch({{1, 2}, {}}, 0, Device::cpu()), Error);
}

}  // namespace
}  // namespace tessera::tasks
