// Files of tokens: our own stream format, nanoGPT's and llm.c's; vocabularies that do not fit a
// model; texts that are tokenized once.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "base/error.h"
#include "engine/data/corpus.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class StreamFolder : public testing::TemporaryFolder {
 public:
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path()), fs::directory_iterator()));
  }
};

// Encodes the words of a text by their length, and counts its calls.
class WordLengths final : public Tokenizer {
 public:
  explicit WordLengths(std::int64_t vocabulary = 100'000, std::uint64_t fingerprint = 77)
      : vocabulary_(vocabulary), fingerprint_(fingerprint) {}
  [[nodiscard]] std::string_view name() const override { return "word lengths"; }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return vocabulary_; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    ++asked;
    std::vector<std::int32_t> ids;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
      if (end > at) ids.push_back(static_cast<std::int32_t>(end - at));
      at = end + 1;
    }
    return ids;
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t>) const override { return {}; }
  mutable std::atomic<int> asked = 0;

 private:
  std::int64_t vocabulary_;
  std::uint64_t fingerprint_;
};

std::string refused(const std::function<void()>& body, ErrorCode code) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

std::string file_bytes(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::vector<std::int32_t> all_tokens(const Corpus& corpus) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(corpus.tokens()));
  corpus.read(0, tokens);
  return tokens;
}

std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t tokens,
                 const std::string& ids) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return bytes_of(header) + ids;
}

TEST(TokenStream, IsReadAsItWasWritten) {
  const StreamFolder folder;
  for (const std::int64_t vocabulary : {1000, 65536, 65537, 128256}) {
    const WordLengths tokenizer(vocabulary);
    const auto largest = static_cast<std::int32_t>(vocabulary - 1);
    const fs::path path = folder / "tokens.bin";
    {
      TokenStreamWriter writer(path, tokenizer, {});
      for (std::int32_t i = 0; i < 5000; ++i) {
        writer.append(std::vector<std::int32_t>{i % 1000, largest});
      }
      writer.finish();
    }
    EXPECT_EQ(fs::file_size(path), 256u + 10'000u * (vocabulary <= 65536 ? 2 : 4));
    const Corpus corpus(path, ByteTokenizer());
    EXPECT_EQ(corpus.tokens(), 10'000);
    EXPECT_EQ(corpus.tokenizer_name(), "word lengths");
    EXPECT_EQ(corpus.vocabulary_size(), vocabulary);
    std::vector<std::int32_t> some(3);
    corpus.read(4001, some);
    EXPECT_EQ(some, (std::vector<std::int32_t>{largest, 2001 % 1000, largest}));
    EXPECT_EQ(Corpus(path, tokenizer).tokens(), 10'000);
  }
}

TEST(TokenStream, IncompleteStreamsAreNotRead) {
  const StreamFolder folder;
  const WordLengths tokenizer;
  {
    TokenStreamWriter writer(folder / "tokens.bin", tokenizer, {});
    writer.append(std::vector<std::int32_t>{1, 2, 3});
  }
  EXPECT_EQ(folder.files(), 0u);
  EXPECT_NE(refused([&] { TokenStreamWriter(folder / "gone/tokens.bin", tokenizer, {}); },
                    ErrorCode::configuration)
                .find("gone/tokens.bin"),
            std::string::npos);
}

TEST(TokenStream, OfAnotherTokenizerIsRefused) {
  const StreamFolder folder;
  {
    TokenStreamWriter writer(folder / "tokens.bin", WordLengths(), {});
    writer.append(std::vector<std::int32_t>{1, 2, 3});
    writer.finish();
  }
  const std::string message = refused(
      [&] { Corpus(folder / "tokens.bin", WordLengths(100'000, 78)); }, ErrorCode::configuration);
  EXPECT_NE(message.find("holds tokens of tokenizer word lengths"), std::string::npos) << message;
}

TEST(TokenStream, DamageIsNamed) {
  const StreamFolder folder;
  {
    TokenStreamWriter writer(folder / "tokens.bin", WordLengths(), {});
    writer.append(std::vector<std::int32_t>{1, 2, 3});
    writer.finish();
  }
  const std::string sound = file_bytes(folder / "tokens.bin");
  const auto message = [&](const std::string& contents) {
    const fs::path path = folder.write("bad.tokens", contents);
    return refused([&] { Corpus(path, ByteTokenizer()); }, ErrorCode::data);
  };
  EXPECT_NE(message(sound.substr(0, 100)).find("cut off"), std::string::npos);
  EXPECT_NE(message(sound.substr(0, sound.size() - 1)).find("damaged"), std::string::npos);
  EXPECT_NE(message(sound.substr(0, 256)).find("damaged"), std::string::npos);
  std::string other = sound;
  other[16] = 9;
  EXPECT_NE(message(other).find("version 9"), std::string::npos);
  for (const std::size_t place : {20, 31, 39, 67}) {
    other = sound;
    other[place] = '\x7f';
    EXPECT_NE(message(other).find("damaged"), std::string::npos) << place;
  }
}

TEST(TokenStream, ReadsFilesOfNanoGptAndLlmc) {
  const StreamFolder folder;
  const std::vector<std::int32_t> ids = {0, 1, 50256, 7, 42};
  const std::string two = bytes_of(std::vector<std::uint16_t>{0, 1, 50256, 7, 42});
  const std::string four = bytes_of(std::vector<std::uint32_t>{0, 1, 50256, 7, 42});
  const Corpus nano(folder.write("train.bin", two), ByteTokenizer());
  EXPECT_EQ(all_tokens(nano), ids);
  EXPECT_EQ(nano.vocabulary_size(), 0);
  const Corpus gpt2(folder.write("gpt2.bin", llmc(20240520, 1, 5, two)), ByteTokenizer());
  EXPECT_EQ(all_tokens(gpt2), ids);
  EXPECT_EQ(gpt2.vocabulary_size(), 50257);
  const Corpus llama(folder.write("llama", llmc(20240801, 7, 5, four)), ByteTokenizer());
  EXPECT_EQ(all_tokens(llama), ids);
  EXPECT_EQ(llama.tokenizer_name(), "llama3");

  const auto message = [&](const std::string& name, const std::string& contents) {
    const fs::path path = folder.write(name, contents);
    return refused([&] { Corpus(path, ByteTokenizer()); }, ErrorCode::data);
  };
  EXPECT_NE(message("odd.bin", "abc").find("3 bytes"), std::string::npos);
  EXPECT_NE(message("short.bin", llmc(20240520, 1, 6, two)).find("6 tokens"), std::string::npos);
  EXPECT_NE(message("old.bin", llmc(20240520, 2, 5, two)).find("version 2"), std::string::npos);
  EXPECT_NE(message("none.bin", llmc(20240520, 1, 0, "")).find("no tokens"), std::string::npos);
}

TEST(Vocabulary, ThatDoesNotFitTheModelIsRefused) {
  EXPECT_NO_THROW(check_vocabulary("data", "gpt2", 50257, 50304, true));
  EXPECT_NO_THROW(check_vocabulary("data", "qwen", 151665, 152064, true));
  EXPECT_NO_THROW(check_vocabulary("data", "bytes", 256, 50257, false));
  EXPECT_NO_THROW(check_vocabulary("data", "", 0, 50257, true));
  std::string message = refused([] { check_vocabulary("data", "gpt2", 50257, 32000, false); },
                                ErrorCode::configuration);
  EXPECT_NE(message.find("50257 tokens"), std::string::npos) << message;
  message = refused([] { check_vocabulary("data", "bytes", 256, 50257, true); },
                    ErrorCode::configuration);
  EXPECT_NE(message.find("tokenizer.json"), std::string::npos) << message;
}

TEST(Vocabulary, IdsOutsideTheModelAreFoundWhenTheyAreRead) {
  const StreamFolder folder;
  const std::string ids = bytes_of(std::vector<std::uint16_t>{1, 2, 999, 1000, 3});
  const Corpus corpus(folder.write("train.bin", ids), ByteTokenizer());
  corpus.require_vocabulary(1000, true);
  std::vector<std::int32_t> some(3);
  EXPECT_NO_THROW(corpus.read(0, some));
  const std::string message = refused([&] { corpus.read(1, some); }, ErrorCode::data);
  EXPECT_NE(message.find("token 3 is 1000"), std::string::npos) << message;
}

TEST(TokenizedText, IsTokenisedOnce) {
  const StreamFolder folder;
  const fs::path text = folder.write("text.txt", "a bb ccc\ndddd  e");
  const WordLengths tokenizer;
  const std::vector<std::int32_t> expected = {1, 2, 3, 4, 1};
  const Corpus first(text, tokenizer);
  EXPECT_EQ(all_tokens(first), expected);
  const int asked = tokenizer.asked;
  EXPECT_GT(asked, 0);
  const Corpus second(text, tokenizer);
  EXPECT_EQ(all_tokens(second), expected);
  EXPECT_EQ(tokenizer.asked, asked) << "the stream beside the text was not used";
  EXPECT_EQ(second.fingerprint(), first.fingerprint());
  EXPECT_EQ(folder.files(), 2u);

  // Another text, another tokenizer or a damaged stream: the text is tokenized again.
  (void)folder.write("text.txt", "a bb ccc\ndddd  e and more");
  EXPECT_EQ(Corpus(text, tokenizer).tokens(), 7);
  EXPECT_EQ(Corpus(text, WordLengths(100'000, 78)).tokens(), 7);
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().extension() == ".tokens") fs::resize_file(entry.path(), 300);
  }
  EXPECT_EQ(Corpus(text, tokenizer).tokens(), 7);
}

TEST(TokenizedText, DamageIsFoundAndMended) {
  const StreamFolder folder;
  const fs::path text = folder.write("text.txt", "a bb ccc\ndddd  e");
  const WordLengths tokenizer;
  const std::vector<std::int32_t> expected = all_tokens(Corpus(text, tokenizer));
  fs::path stream;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().extension() == ".tokens") stream = entry.path();
  }
  const std::string sound = file_bytes(stream);
  for (const std::size_t place : {std::size_t{0}, std::size_t{70}, std::size_t{210},
                                  std::size_t{256}, sound.size() - 1, sound.size()}) {
    std::string other = sound;
    if (place < sound.size()) other[place] ^= '\x01';
    if (place == sound.size()) other.pop_back();  // cut
    (void)folder.write(stream.filename(), other);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(all_tokens(Corpus(text, tokenizer)), expected) << place;
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(stream.string() + " is damaged"), std::string::npos) << place << said;
    EXPECT_EQ(file_bytes(stream), sound) << place;
  }
}

TEST(TokenizedText, AnotherTextOfTheSameSizeAndTimeIsNoticed) {
  const StreamFolder folder;
  const fs::path text = folder.write("text.txt", "a bb ccc");
  const WordLengths tokenizer;
  EXPECT_EQ(all_tokens(Corpus(text, tokenizer)), (std::vector<std::int32_t>{1, 2, 3}));
  const auto time = fs::last_write_time(text);
  (void)folder.write("text.txt", "ccc bb a");
  fs::last_write_time(text, time);
  EXPECT_EQ(all_tokens(Corpus(text, tokenizer)), (std::vector<std::int32_t>{3, 2, 1}));
  // Moved over the first one, with its time.
  const fs::path other = folder.write("other.txt", "a ccc bb");
  fs::last_write_time(other, time);
  fs::rename(other, text);
  EXPECT_EQ(all_tokens(Corpus(text, tokenizer)), (std::vector<std::int32_t>{1, 3, 2}));
}

// The next writer removes the leftovers of a killed process, but not files that a process has open.
TEST(TokenStreams, StalePartsAreRemoved) {
  const StreamFolder folder;
  const WordLengths tokenizer;
  const fs::path stale = folder.write("text.tokens.partial-0123abcd", "half a corpus");
  const fs::path others = folder.write("other.tokens.partial-0123abcd", "of another stream");
  const fs::path named = folder.write("text.tokens.partial-mine", "of the user");
  TokenStreamWriter first(folder / "text.tokens", tokenizer, {});
  EXPECT_FALSE(fs::exists(stale));
  EXPECT_EQ(folder.files(), 3u);
  TokenStreamWriter second(folder / "text.tokens", tokenizer, {});
  EXPECT_EQ(folder.files(), 4u);
  first.finish();
  second.finish();
  EXPECT_EQ(folder.files(), 3u);
  EXPECT_TRUE(fs::exists(others));
  EXPECT_TRUE(fs::exists(named));
}

TEST(TokenStreams, StalePartsOfOtherUsersStay) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const StreamFolder folder;
  const WordLengths tokenizer;
  const fs::path theirs = folder.write("text.tokens.partial-0123abcd", "half a corpus");
  ASSERT_EQ(::chown(theirs.c_str(), 65534, 65534), 0);
  TokenStreamWriter(folder / "text.tokens", tokenizer, {}).finish();
  EXPECT_TRUE(fs::exists(theirs));
}

TEST(TokenizedText, ByOneRankForAll) {
  const StreamFolder folder;
  std::string contents;
  for (int i = 0; i < 200'000; ++i) contents += "word ";
  const fs::path text = folder.write("text.txt", contents);
  const WordLengths tokenizer;
  std::vector<std::thread> ranks;
  std::atomic<std::int64_t> tokens = 0;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&] { tokens += Corpus(text, tokenizer).tokens(); });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(tokens, 800'000);
  const int asked = tokenizer.asked;
  const WordLengths alone;
  fs::remove(folder / "text.txt.000000000000004d.tokens");
  EXPECT_EQ(Corpus(text, alone).tokens(), 200'000);
  EXPECT_EQ(asked, alone.asked) << "more than one rank tokenised";
}

TEST(TokenizedText, WhereTheFolderCannotBeWritten) {
  const StreamFolder folder;
  const fs::path text = folder.write("text.txt", "a bb ccc");
  constexpr auto read_only = fs::perms(0555);
  fs::permissions(folder.path(), read_only);
  // Root can write everywhere, so the test becomes another user meanwhile.
  constexpr uid_t other_user = 65534;
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(other_user) != 0)
    GTEST_SKIP() << "root, and cannot become another user";
  std::vector<std::int32_t> tokens;
  EXPECT_NO_THROW(tokens = all_tokens(Corpus(text, WordLengths())));
  ASSERT_EQ(::seteuid(user), 0);
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(folder.files(), 1u);
}

TEST(TokenizedText, WithoutTokensIsRefused) {
  const StreamFolder folder;
  const fs::path text = folder.write("blank.txt", " \n \n");
  EXPECT_NE(refused([&] { Corpus(text, WordLengths()); }, ErrorCode::data).find("no tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
