// Shards of a corpus: read together as one stream; refused unless all are there, each once, with
// ids of one tokenizer.
#include "engine/data/token_shards.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "base/error.h"
#include "engine/data/corpus.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::TemporaryFolder;

// A tokenizer by name alone.
class NamedTokenizer final : public Tokenizer {
 public:
  explicit NamedTokenizer(std::string name = "named", std::uint64_t fingerprint = 77,
                          std::int64_t vocabulary = 50'000)
      : name_(std::move(name)), fingerprint_(fingerprint), vocabulary_(vocabulary) {}
  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return vocabulary_; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view) const override { return {}; }
  [[nodiscard]] std::string decode(std::span<const std::int32_t>) const override { return {}; }

 private:
  std::string name_;
  std::uint64_t fingerprint_;
  std::int64_t vocabulary_;
};

std::vector<std::int32_t> ids_from(std::int32_t first, std::size_t count) {
  std::vector<std::int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

class ShardFolder : public TemporaryFolder {
 public:
  fs::path shard(TokenShard shard, const std::vector<std::int32_t>& ids,
                 const Tokenizer& tokenizer = NamedTokenizer()) const {
    return stream(token_shard_path(path(), shard), ids, shard, tokenizer);
  }
  static fs::path stream(const fs::path& path, const std::vector<std::int32_t>& ids,
                         TokenShard shard = {}, const Tokenizer& tokenizer = NamedTokenizer()) {
    TokenStreamWriter writer(path, tokenizer, {}, shard);
    writer.append(ids);
    writer.finish();
    return path;
  }
  [[nodiscard]] std::vector<fs::path> found() const { return find_token_shards({path().string()}); }
  [[nodiscard]] std::string refusal() const {
    const std::string message =
        error_of([&] { Corpus(found(), ByteTokenizer()); }, ErrorCode::data);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
};

void expect_in(const std::string& part, const std::string& message) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(TokenShards, NumbersAreFromOneToTheCount) {
  EXPECT_EQ(parse_token_shard("3/8"), (TokenShard{3, 8}));
  EXPECT_EQ(parse_token_shard("99999/99999"), (TokenShard{99'999, 99'999}));
  EXPECT_EQ(token_shard_path("out", {3, 8}), fs::path("out/tokens-00003-of-00008.tokens"));
  for (const char* wrong : {"0/0", "5/3", "0/3", "-1/3", "1/-3", "1", "1/", "/1", "", "1/3/3",
                            "1/3 ", "one/two", "1/100000", "1/99999999999999999999", "+1/3"}) {
    SCOPED_TRACE(wrong);
    expect_in("--shard " + std::string(wrong) + ": give I/N",
              error_of([&] { (void)parse_token_shard(wrong); }, ErrorCode::usage));
  }
}

TEST(TokenShards, AreReadAsOneStream) {
  std::mt19937 draw(5);
  for (const std::int64_t vocabulary : {50'000, 100'000}) {
    const NamedTokenizer tokenizer("named", 77, vocabulary);
    const ShardFolder folder, whole;
    const std::vector<std::int32_t> all = ids_from(100, 40'000);
    const std::vector<std::size_t> ends = {1, 1, 20'000, 20'003, 40'000, 40'000};
    for (std::size_t i = 0, begin = 0; i < ends.size(); begin = ends[i++]) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
      folder.shard({static_cast<std::int64_t>(i) + 1, 6},
                   {first, all.begin() + static_cast<std::ptrdiff_t>(ends[i])}, tokenizer);
    }
    const Corpus one(ShardFolder::stream(whole / "whole.tokens", all, {}, tokenizer), tokenizer);
    const Corpus shards(folder.found(), tokenizer);
    ASSERT_EQ(shards.tokens(), 40'000);
    EXPECT_EQ(shards.vocabulary_size(), vocabulary);
    EXPECT_EQ(shards.tokenizer_name(), "named");
    EXPECT_EQ(shards.fingerprint(), one.fingerprint());
    for (int i = 0; i < 200; ++i) {
      const std::size_t first = draw() % 40'000;
      std::vector<std::int32_t> ids(draw() % (40'001 - first));
      shards.read(static_cast<std::int64_t>(first), ids);
      ASSERT_EQ(ids, ids_from(100 + static_cast<std::int32_t>(first), ids.size()));
    }
    // An id that the model does not know.
    shards.require_vocabulary(vocabulary, false);
    std::vector<std::int32_t> ids(40'000);
    shards.read(0, ids);
    const Corpus again(folder.found(), tokenizer);
    expect_in("vocabulary is 30000",
              error_of([&] { again.require_vocabulary(30'000, false); }, ErrorCode::configuration));
  }
}

TEST(TokenShards, AnIdOutsideTheVocabularyIsNamed) {
  const ShardFolder folder;
  folder.shard({1, 2}, ids_from(0, 10), NamedTokenizer("", 0, 0));
  folder.shard({2, 2}, ids_from(70, 10), NamedTokenizer("", 0, 0));
  const Corpus corpus(folder.found(), ByteTokenizer());
  corpus.require_vocabulary(75, false);
  std::vector<std::int32_t> ids(20);
  expect_in("and its other shards: token 15 is 75, and the vocabulary has 75",
            error_of([&] { corpus.read(0, ids); }, ErrorCode::data));
}

TEST(TokenShards, AreFoundInFoldersAndAmongFiles) {
  const ShardFolder folder;
  const std::string b = folder.shard({2, 2}, ids_from(5, 5)).string();
  const std::string a = folder.shard({1, 2}, ids_from(0, 5)).string();
  folder.write("notes.txt", "no shard");
  folder.write("damaged.partial-0123abcd", "TESSERA");
  EXPECT_EQ(folder.found().size(), 2U);
  EXPECT_EQ(find_token_shards({a, b}).size(), 2U);
  EXPECT_TRUE(find_token_shards({(folder / "notes.txt").string(), "missing"}).empty());
  expect_in("is a shard of a corpus, and " + (folder / "notes.txt").string() + " is none",
            error_of(
                [&] {
                  (void)find_token_shards({a, (folder / "notes.txt").string()});
                },
                ErrorCode::data));
  // A whole stream beside them is another corpus, and not a part of this one.
  ShardFolder::stream(folder / "text.tokens", ids_from(0, 5));
  EXPECT_EQ(Corpus(folder.found(), ByteTokenizer()).tokens(), 10);
}

TEST(TokenShards, AllMustBeThere) {
  const ShardFolder folder;
  const fs::path third = folder.shard({3, 4}, ids_from(0, 5));
  folder.shard({1, 4}, ids_from(0, 5));
  expect_in(
      "tokens-00001-of-00004.tokens is shard 1/4, and 2 of the 4 shards are missing: 2, 4; "
      "name all of them, or write the others: tessera tokenize ... --out " +
          folder.path().string() + " --shard 2/4",
      folder.refusal());
  expect_in("3 of the 4 shards are missing: 1, 2, 4",
            error_of([&] { Corpus(third, ByteTokenizer()); }, ErrorCode::data));
  const ShardFolder many;
  many.shard({99'999, 99'999}, ids_from(0, 5));
  expect_in("are missing: 1, 2, 3, 4, 5 and 99993 more;", many.refusal());
  const ShardFolder single;
  EXPECT_EQ(Corpus(single.shard({1, 1}, ids_from(0, 5)), ByteTokenizer()).tokens(), 5);
}

TEST(TokenShards, NoneIsThereTwice) {
  const ShardFolder folder;
  const fs::path first = folder.shard({1, 2}, ids_from(0, 5));
  folder.shard({2, 2}, ids_from(0, 5));
  fs::copy_file(first, folder / "copy.tokens");
  expect_in("copy.tokens and " + first.string() + " are both shard 1/2; remove one",
            folder.refusal());
}

TEST(TokenShards, OthersAreRefused) {
  const ShardFolder folder;
  folder.shard({1, 2}, ids_from(0, 5));
  const fs::path second = folder.shard({2, 2}, ids_from(0, 5), NamedTokenizer("other", 78));
  expect_in(
      "are shards with ids of two tokenizers, named and other; write one of them again: "
      "tessera tokenize ... --shard 2/2",
      folder.refusal());
  // Without tokens the tokenizer does not matter.
  folder.shard({2, 2}, {}, NamedTokenizer("other", 78));
  EXPECT_EQ(Corpus(folder.found(), NamedTokenizer()).tokens(), 5);
  const fs::path other = folder.shard({2, 3}, ids_from(0, 5));
  expect_in(second.string() + " and " + other.string() + " are shards 2/2 and 2/3, of two corpora",
            folder.refusal());
  fs::remove(other);
  folder.shard({1, 2}, {});
  expect_in("hold no tokens", folder.refusal());
  folder.shard({1, 2}, ids_from(0, 5));
  expect_in("holds tokens of tokenizer named, not of third",
            error_of([&] { Corpus(folder.found(), NamedTokenizer("third", 79)); },
                     ErrorCode::configuration));
}

// Writes a number of four bytes into a file.
void put_number_at(const fs::path& path, std::streamoff at, std::uint32_t number) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(at);
  file.write(reinterpret_cast<const char*>(&number), sizeof(number));
}

TEST(TokenShards, HeadersAreChecked) {
  const ShardFolder folder;
  const fs::path path = folder.shard({2, 2}, ids_from(0, 5));
  for (const auto& [index, count] : {std::pair{3U, 2U}, {0U, 2U}, {2U, 0U}, {1U, 0xffffffffU}}) {
    put_number_at(path, 240, index);
    put_number_at(path, 244, count);
    expect_in("is damaged", error_of([&] { (void)folder.found(); }, ErrorCode::data));
    expect_in("is damaged", error_of([&] { Corpus(path, ByteTokenizer()); }, ErrorCode::data));
  }
}

TEST(TokenShards, LongNamesOfOlderStreamsAreNoShard) {
  const ShardFolder folder;
  const fs::path path = ShardFolder::stream(folder / "a.tokens", ids_from(0, 5), {},
                                            NamedTokenizer(std::string(300, 'x')));
  EXPECT_EQ(Corpus(path, ByteTokenizer()).tokenizer_name(), std::string(140, 'x'));
  EXPECT_TRUE(is_sound_token_stream(path));
  // Earlier versions kept 172 bytes of a name, and before that 188.
  put_number_at(path, 64, 172);
  for (std::streamoff at = 208; at < 240; at += 4) put_number_at(path, at, 0x78787878);
  EXPECT_EQ(Corpus(path, ByteTokenizer()).tokenizer_name(), std::string(172, 'x'));
  EXPECT_FALSE(is_sound_token_stream(path));
  put_number_at(path, 64, 188);
  for (const std::streamoff at : {240, 244, 248, 252}) put_number_at(path, at, 0x78787878);
  EXPECT_EQ(Corpus(path, ByteTokenizer()).tokenizer_name(), std::string(188, 'x'));
  EXPECT_TRUE(folder.found().empty());
}

}  // namespace
}  // namespace tessera
