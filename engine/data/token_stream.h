// Token ids in a file: what a stream says of itself, how one is written, and how those of others
// are told apart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer.h"

namespace tessera {

// What a stream of `tessera tokenize` begins with.
inline constexpr std::string_view token_stream_magic = "TESSERA\nTOKENS\n\x1a";

// Tells a text from what it was before.
struct TextStamp {
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0;
  bool operator==(const TextStamp&) const = default;
};

// Where the ids of a file stand, and whose they are. docs/token-streams.md has the layout.
struct TokenStreamFormat {
  std::string kind;         // "tessera", "llm.c" or "uint16", for messages
  std::int64_t offset = 0;  // of the first id in the file, in bytes
  std::int64_t tokens = 0;
  int bytes_per_token = 2;        // 2 or 4, unsigned, little endian
  std::string tokenizer;          // its name; empty: not known
  std::uint64_t fingerprint = 0;  // of the tokenizer; 0: not known
  std::int64_t vocabulary = 0;    // how many ids the tokenizer has; 0: not known
  TextStamp source = {};          // of the text that it was made from, where that was noted
};

// What the first bytes of a file (up to 256) and its size and name tell: a stream of
// `tessera tokenize`, a file of llm.c, or, for a name that ends in .bin, nanoGPT's bare uint16.
// Nothing for a text. Throws Error(data) beginning with the path when a header does not fit the
// file.
std::optional<TokenStreamFormat> recognise_token_stream(const std::filesystem::path& path,
                                                        std::string_view beginning,
                                                        std::int64_t file_bytes);

// Writes a stream beside its final name, durably, and gives it the name when all is there: nobody
// ever reads half a one.
class TokenStreamWriter {
 public:
  // Two bytes for each id when the tokenizer's all fit. Throws Error(data) naming the path.
  TokenStreamWriter(std::filesystem::path path, const Tokenizer& tokenizer,
                    const TextStamp& source);
  ~TokenStreamWriter();  // removes what was not finished
  TokenStreamWriter(const TokenStreamWriter&) = delete;
  TokenStreamWriter& operator=(const TokenStreamWriter&) = delete;

  void append(std::span<const std::int32_t> ids);
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  void finish();

 private:
  void write(const void* data, std::size_t bytes, std::int64_t offset);
  [[nodiscard]] std::string header() const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::string tokenizer_;
  std::uint64_t fingerprint_;
  std::int64_t vocabulary_;
  int bytes_per_token_;
  std::int64_t tokens_ = 0;
  int file_ = -1;
  TextStamp source_;
  std::vector<unsigned char> buffer_;
};

}  // namespace tessera
