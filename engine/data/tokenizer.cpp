// Functions that all tokenizers share, and the byte tokenizer.
#include "engine/data/tokenizer.h"

#include <utility>

#include "base/error.h"

namespace tessera {

std::vector<std::int32_t> Tokenizer::encode_sequence(std::string_view text,
                                                     std::int64_t max_length) const {
  std::vector<std::int32_t> ids = encode(text);
  if (max_length > 0 && std::cmp_greater(ids.size(), max_length)) {
    ids.resize(static_cast<std::size_t>(max_length));
  }
  return ids;
}

CutTokens Tokenizer::encode_cut(std::string_view /*text*/,
                                std::span<const std::size_t> /*places*/) const {
  fail(ErrorCode::configuration, "tokenizer {} does not say where in a text its tokens are",
       name());
}

CutTokens ByteTokenizer::encode_cut(std::string_view text,
                                    std::span<const std::size_t> places) const {
  CutTokens tokens{encode(text), {}};
  for (const std::size_t place : places) tokens.cuts.push_back({place, place});
  return tokens;
}

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
  return ids;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text(ids.size(), '\0');
  for (std::size_t i = 0; i < ids.size(); ++i) {
    TESSERA_CHECK(ids[i] >= 0 && ids[i] < 256, ErrorCode::data,
                  "token {} at position {} is not a byte (0 to 255)", ids[i], i);
    text[i] = static_cast<char>(ids[i]);
  }
  return text;
}

std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name) {
  TESSERA_CHECK(name == "bytes", ErrorCode::configuration,
                "tokenizer {} is unknown; the only one that needs no file is bytes", name);
  return std::make_shared<ByteTokenizer>();
}

}  // namespace tessera
