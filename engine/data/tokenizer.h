// Converts text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// The tokens of a text that is cut in places.
struct CutTokens {
  struct Cut {
    std::size_t ended = 0;  // the tokens that end before the place or at it
    std::size_t begun = 0;  // those that begin before it: one more if it is inside a token
  };
  std::vector<std::int32_t> ids;
  std::vector<Cut> cuts;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual std::int64_t vocabulary_size() const = 0;
  // Equal for tokenizers that give the same ids, independent of their names; 0: unknown.
  [[nodiscard]] virtual std::uint64_t fingerprint() const { return 0; }
  // The text's tokens, without special tokens around them. Accepts any bytes: tokenizers that work
  // on characters read invalid UTF-8 as its replacement character.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // The same ids, and how many of them lie before each of these places in the text, in bytes,
  // ascending. Error(data) if the tokenizer changes the text so that its tokens have no place in
  // it.
  [[nodiscard]] virtual CutTokens encode_cut(std::string_view text,
                                             std::span<const std::size_t> places) const;
  // The input of a sentence model: the tokens with the special tokens of the tokenizer's template
  // around them ([CLS] .. [SEP], <s> .. </s>). The text is cut so that all together are at most
  // max_length tokens (0: no limit).
  [[nodiscard]] virtual std::vector<std::int32_t> encode_sequence(std::string_view text,
                                                                  std::int64_t max_length) const;
  // The id that pads sequences.
  [[nodiscard]] virtual std::int32_t padding_id() const { return 0; }
  // The token that ends a text, if the tokenizer has one.
  [[nodiscard]] virtual std::optional<std::int32_t> end_of_text() const { return {}; }
  // Throws Error(data) for an id outside the vocabulary.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

inline constexpr std::uint64_t byte_tokenizer_fingerprint = 0x7365747962;  // "bytes"

// Each byte is a token: 256 ids, any text and any binary file.
class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string_view name() const override { return "bytes"; }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return 256; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return byte_tokenizer_fingerprint; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override;
  [[nodiscard]] CutTokens encode_cut(std::string_view text,
                                     std::span<const std::size_t> places) const override;
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override;
};

// Makes a tokenizer that needs no files, by name; Error(configuration) for an unknown name.
// tokenizers/load.h loads all others.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name);

}  // namespace tessera
