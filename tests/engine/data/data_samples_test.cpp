// Data order: every window once per epoch, the same on every world size, resumable from a number;
// and bad files.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "engine/data/permutation.h"
#include "engine/data/samples.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using testing::error_of;
using testing::TemporaryFolder;

// Byte i of the file is i % 251: a token shows its position, for files up to 251 bytes.
std::shared_ptr<const Corpus> corpus_of(const TemporaryFolder& folder, std::int64_t bytes,
                                        const std::string& name = "text.txt") {
  std::string text(static_cast<std::size_t>(bytes), '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  std::ofstream(folder / name, std::ios::binary) << text;
  return std::make_shared<Corpus>(folder / name, ByteTokenizer());
}

TEST(Permutation, IsOneForEverySizeSeedAndEpoch) {
  for (const std::uint64_t n : {1, 2, 3, 5, 16, 255, 256, 257, 1000, 4097}) {
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      const Permutation order(n, 42, epoch);
      std::vector<bool> seen(n, false);
      for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t value = order(i);
        ASSERT_LT(value, n);
        ASSERT_FALSE(seen[value]) << "n " << n << " index " << i;
        seen[value] = true;
      }
    }
  }
}

TEST(Permutation, ReachesEveryOrderAboutEquallyOften) {
  std::map<std::vector<std::uint64_t>, int> counts;
  constexpr int draws = 12'000;
  for (std::uint64_t seed = 0; seed < draws; ++seed) {
    const Permutation order(4, seed, 0);
    ++counts[{order(0), order(1), order(2), order(3)}];
  }
  ASSERT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts)
    EXPECT_NEAR(count, draws / 24, 5 * std::sqrt(draws / 24.0));
}

TEST(Permutation, WorksForHugeSizesWithoutMemory) {
  const std::uint64_t n = (std::uint64_t{1} << 62) + 12345;
  const Permutation order(n, 1, 2);
  std::set<std::uint64_t> values;
  for (std::uint64_t i = 0; i < 1000; ++i) values.insert(order(i));
  EXPECT_EQ(values.size(), 1000u);
  EXPECT_LT(*values.rbegin(), n);
  EXPECT_THROW((void)order(n), std::logic_error);
}

TEST(Samples, AnEpochTakesEveryWindowExactlyOnce) {
  const TemporaryFolder folder;
  const Samples samples(corpus_of(folder, 1003), {.seq_len = 10, .shuffle = true, .seed = 7});
  ASSERT_EQ(samples.samples_per_epoch(), 100);
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < 100; ++i) order.push_back(samples.position(epoch * 100 + i));
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_GE(order.front(), 0);
    EXPECT_LE(order.back() + 10, 1002);
    for (std::size_t i = 1; i < order.size(); ++i) EXPECT_EQ(order[i] - order[i - 1], 10);
  }
  EXPECT_EQ(orders.size(), 5u) << "every epoch has an order of its own";
}

TEST(Samples, TargetsFollowInputs) {
  const TemporaryFolder folder;
  const Samples samples(corpus_of(folder, 240), {.seq_len = 7, .shuffle = true, .seed = 3});
  const Batch batch = samples.batch(11, 40);  // into the second epoch
  EXPECT_EQ(batch.count, 40);
  EXPECT_EQ(batch.first_sample, 11);
  for (std::int64_t row = 0; row < batch.count; ++row) {
    const std::int64_t first = samples.position(11 + row);
    for (std::int64_t i = 0; i < 7; ++i) {
      const auto at = static_cast<std::size_t>(row * 7 + i);
      EXPECT_EQ(batch.inputs[at], first + i);
      EXPECT_EQ(batch.targets[at], first + i + 1);
    }
  }
}

TEST(Samples, WithoutShuffleTheFileIsReadInOrder) {
  const TemporaryFolder folder;
  const Samples samples(corpus_of(folder, 101), {.seq_len = 10, .shuffle = false, .seed = 7});
  for (std::int64_t i = 0; i < 20; ++i) EXPECT_EQ(samples.position(i), i % 10 * 10);
}

TEST(Samples, TheWorldGetsTheSamplesOfOneRank) {
  const TemporaryFolder folder;
  const Samples samples(corpus_of(folder, 5000), {.seq_len = 16, .shuffle = true, .seed = 1});
  constexpr std::int64_t world = 3;
  constexpr std::int64_t batch_size = 4;
  for (std::int64_t step = 0; step < 60; ++step) {
    const Batch whole =
        samples.batch(first_sample_of(step, 1, 0, world * batch_size), world * batch_size);
    std::vector<std::int32_t> inputs;
    std::vector<std::int32_t> targets;
    for (std::int64_t rank = 0; rank < world; ++rank) {
      const Batch part = samples.batch(first_sample_of(step, world, rank, batch_size), batch_size);
      inputs.insert(inputs.end(), part.inputs.begin(), part.inputs.end());
      targets.insert(targets.end(), part.targets.begin(), part.targets.end());
    }
    ASSERT_EQ(inputs, whole.inputs) << "step " << step;
    ASSERT_EQ(targets, whole.targets) << "step " << step;
  }
}

TEST(Samples, ResumeNeedsOnlyTheNumber) {
  const TemporaryFolder folder;
  const SampleOptions options{.seq_len = 9, .shuffle = true, .seed = 5};
  Batch reused;
  const Samples before(corpus_of(folder, 1000), options);
  for (std::int64_t sample = 0; sample < 150; sample += 10) before.fill(sample, 10, reused);
  const Samples after(corpus_of(folder, 1000), options);
  EXPECT_EQ(after.batch(140, 10).inputs, reused.inputs);
}

TEST(Samples, TheSeedDecidesTheOrder) {
  const TemporaryFolder folder;
  const auto corpus = corpus_of(folder, 2000);
  const Samples one(corpus, {.seq_len = 8, .shuffle = true, .seed = 1});
  const Samples other(corpus, {.seq_len = 8, .shuffle = true, .seed = 2});
  EXPECT_NE(one.batch(0, 16).inputs, other.batch(0, 16).inputs);
}

TEST(Samples, TheSmallestFileHasOneWindow) {
  const TemporaryFolder folder;
  const Samples samples(corpus_of(folder, 9), {.seq_len = 8, .shuffle = true, .seed = 1});
  EXPECT_EQ(samples.samples_per_epoch(), 1);
  EXPECT_EQ(samples.batch(1000, 3).inputs.size(), 24u);
  const std::string message =
      error_of([&] { Samples(corpus_of(folder, 8), {.seq_len = 8}); }, ErrorCode::data);
  EXPECT_NE(message.find("text.txt has 8 tokens, less than the 9"), std::string::npos) << message;
}

TEST(Corpus, AnyBytesAreTokens) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 9000; ++i) text += static_cast<char>(i % 256);
  text += "a\r\nb";
  std::ofstream(folder / "with space.txt", std::ios::binary) << text;
  const Corpus corpus(folder / "with space.txt", ByteTokenizer());
  std::vector<std::int32_t> tokens(text.size());
  corpus.read(0, tokens);
  EXPECT_EQ(tokens, ByteTokenizer().encode(text));
  EXPECT_EQ(ByteTokenizer().decode(tokens), text);
  EXPECT_THROW(corpus.read(1, tokens), std::logic_error);
}

TEST(Corpus, BadFilesAreNamed) {
  const TemporaryFolder folder;
  const auto message_for = [&](const fs::path& path) {
    const std::string message = error_of([&] { Corpus(path, ByteTokenizer()); }, ErrorCode::data);
    EXPECT_NE(message.find(path.string()), std::string::npos) << message;
    return message;
  };
  EXPECT_NE(message_for(folder / "missing.txt").find("No such file"), std::string::npos);
  EXPECT_NE(message_for(folder.path()).find("is a folder"), std::string::npos);
  std::ofstream(folder / "empty.txt");
  EXPECT_NE(message_for(folder / "empty.txt").find("is empty"), std::string::npos);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(message_for(folder / "pipe").find("is a pipe"), std::string::npos);
  if (::geteuid() != 0) {
    std::ofstream(folder / "secret.txt") << "text";
    fs::permissions(folder / "secret.txt", fs::perms::none);
    EXPECT_NE(message_for(folder / "secret.txt").find("Permission denied"), std::string::npos);
  }
}

TEST(Corpus, AFileThatShrinksIsAnError) {
  const TemporaryFolder folder;
  const Samples samples(corpus_of(folder, 1000), {.seq_len = 10, .shuffle = false, .seed = 0});
  fs::resize_file(folder / "text.txt", 500);
  EXPECT_EQ(samples.batch(0, 4).count, 4);
  const std::string message = error_of([&] { (void)samples.batch(90, 4); }, ErrorCode::data);
  EXPECT_NE(message.find("became shorter"), std::string::npos) << message;
}

TEST(Corpus, TheFingerprintFollowsTheContent) {
  const TemporaryFolder folder;
  const std::uint64_t one = corpus_of(folder, 100'000, "a")->fingerprint();
  EXPECT_EQ(corpus_of(folder, 100'000, "b")->fingerprint(), one);
  EXPECT_NE(corpus_of(folder, 100'001, "c")->fingerprint(), one);
  std::fstream(folder / "b", std::ios::in | std::ios::out | std::ios::binary) << "changed";
  EXPECT_NE(Corpus(folder / "b", ByteTokenizer()).fingerprint(), one);
  EXPECT_NE(corpus_of(folder, 1, "d")->fingerprint(), one);
}

TEST(Tokenizer, RefusesInvalidTokens) {
  const std::vector<std::int32_t> bad = {65, 256};
  const std::string message = error_of([&] { (void)ByteTokenizer().decode(bad); }, ErrorCode::data);
  EXPECT_NE(message.find("token 256 at position 1"), std::string::npos) << message;
  EXPECT_EQ(make_tokenizer("bytes")->vocabulary_size(), 256);
  (void)error_of([] { (void)make_tokenizer("bpe"); }, ErrorCode::configuration);
}

}  // namespace
}  // namespace tessera
