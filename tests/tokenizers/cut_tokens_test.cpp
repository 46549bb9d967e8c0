// The places of tokens in a text: of byte-level tokenizers at every place, of others at the ends of
// words, and the refusal of texts that a tokenizer changes.
#include <vector>

#include "tokenizers/fixtures_testing.h"

namespace tessera::tokenizers::testing {
namespace {

std::shared_ptr<const Tokenizer> loaded(const std::string& name) {
  return load_tokenizer(fixture(name + ".json"));
}

TEST(CutTokens, BytesAreTokens) {
  const std::vector<std::size_t> places = {0, 2, 5};
  const CutTokens cut = ByteTokenizer().encode_cut("abcde", places);
  EXPECT_EQ(cut.ids.size(), 5U);
  for (std::size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(cut.cuts[i].ended, places[i]);
    EXPECT_EQ(cut.cuts[i].begun, places[i]);
  }
}

// The decoded tokens are the text, so their lengths are the places.
TEST(CutTokens, OfByteLevelTokenizersLieAtTheBytesThatTheyDecodeTo) {
  for (const std::string name : {"gpt2", "llama3"}) {
    const auto tokenizer = loaded(name);
    const std::string text =
        "The tile's  mosaic,\n\n holds 1234 ranks\tand Grüße 東京 of\r\nthem  ";
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      if (i == text.size() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80)
        places.push_back(i);
    }
    const CutTokens cut = tokenizer->encode_cut(text, places);
    EXPECT_EQ(cut.ids, tokenizer->encode(text)) << name;
    std::vector<std::size_t> ends{0};
    for (const std::int32_t id : cut.ids) {
      ends.push_back(ends.back() + tokenizer->decode(std::vector{id}).size());
    }
    // A part of a character decodes to three bytes, so the ends are right up to the first one.
    for (std::size_t i = 0; i < places.size() && places[i] <= 46; ++i) {
      std::size_t ended = 0, begun = 0;
      for (std::size_t token = 0; token + 1 < ends.size(); ++token) {
        ended += ends[token + 1] <= places[i] ? 1 : 0;
        begun += ends[token] < places[i] ? 1 : 0;
      }
      EXPECT_EQ(cut.cuts[i].ended, ended) << name << " at " << places[i];
      EXPECT_EQ(cut.cuts[i].begun, begun) << name << " at " << places[i];
    }
    EXPECT_EQ(cut.cuts.back().ended, cut.ids.size()) << name;
    EXPECT_EQ(cut.cuts.back().begun, cut.ids.size()) << name;
  }
}

// The tokens before the end of a word are those of the text up to there.
TEST(CutTokens, OfWordsAreTheTokensOfTheBeginning) {
  for (const std::string name : {"gpt2", "llama3", "qwen2", "unigram"}) {
    const auto tokenizer = loaded(name);
    const std::string text = "the mosaic holds a tile and two ranks";
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == ' ') places.push_back(i);
    }
    const CutTokens cut = tokenizer->encode_cut(text, places);
    EXPECT_EQ(cut.ids, tokenizer->encode(text)) << name;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::size_t tokens = tokenizer->encode(text.substr(0, places[i])).size();
      EXPECT_EQ(cut.cuts[i].ended, tokens) << name << " at " << places[i];
      EXPECT_EQ(cut.cuts[i].begun, tokens) << name << " at " << places[i];
    }
  }
}

TEST(CutTokens, ATextThatTheTokenizerDoesNotKnowHasNoPlaces) {
  const auto tokenizer = loaded("bert");
  const std::string text = "the \xF0\x93\x80\x80 tile";
  const std::vector<std::size_t> places = {9};
  const std::string line =
      refusal_of([&] { (void)tokenizer->encode_cut(text, places); }, ErrorCode::data);
  EXPECT_NE(line.find("the places of its tokens are not known"), std::string::npos) << line;
}

}  // namespace
}  // namespace tessera::tokenizers::testing
