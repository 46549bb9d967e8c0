// Token ids in a file: the format of a stream, its writer, and detection of other formats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/file_checksum.h"
#include "engine/data/tokenizer.h"

namespace tessera {

// The first bytes of a stream of `tessera tokenize`.
inline constexpr std::string_view token_stream_magic = "TESSERA\nTOKENS\n\x1a";

// Identifies a version of a text. Programs set the time of modification as they like; the time of
// the last change of the file or its attributes is the system's.
struct TextStamp {
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;
  std::uint64_t inode = 0;
  bool operator==(const TextStamp&) const = default;
};

// A stream's place in a corpus that several processes write: part `index` of `count`, from 1 on.
struct TokenShard {
  std::int64_t index = 0;
  std::int64_t count = 0;  // 0: the stream is a corpus by itself
  bool operator==(const TokenShard&) const = default;
};
inline constexpr std::int64_t most_token_shards = 99'999;

// The position and origin of the ids in a file. docs/tokenizers.md has the layout.
struct TokenStreamFormat {
  std::string kind;         // "tessera", "llm.c" or "uint16", for messages
  std::int64_t offset = 0;  // of the first id in the file, in bytes
  std::int64_t tokens = 0;
  int bytes_per_token = 2;        // 2 or 4, unsigned, little endian
  std::string tokenizer;          // its name; empty: unknown
  std::uint64_t fingerprint = 0;  // of the tokenizer; 0: unknown
  std::int64_t vocabulary = 0;    // number of ids of the tokenizer; 0: unknown
  TextStamp source = {};          // of the text that it was made from, if recorded
  TokenShard shard = {};
  std::uint64_t checksum = 0;  // of header and ids; 0: not recorded
};

// Recognises a file by its first bytes (up to 256), size and name: a stream of `tessera tokenize`,
// a file of llm.c, or, if the name ends in .bin, nanoGPT's bare uint16. Empty for a text. Throws an
// Error(data) that begins with the path if a header does not match the file.
std::optional<TokenStreamFormat> recognise_token_stream(const std::filesystem::path& path,
                                                        std::string_view beginning,
                                                        std::int64_t file_bytes);

// True if the bytes of a stream of `tessera tokenize` have the checksum in its header. Reads the
// whole file. False for a stream without a checksum.
bool is_sound_token_stream(const std::filesystem::path& path);

// Writes a stream under a temporary name, durably, and renames it when it is complete: no reader
// ever sees half a stream.
class TokenStreamWriter {
 public:
  // Uses two bytes per id if all ids of the tokenizer fit. A tokenizer with a vocabulary of 0 is
  // unknown: any id is written, in four bytes. Throws Error(data) with the path.
  TokenStreamWriter(std::filesystem::path path, const Tokenizer& tokenizer, const TextStamp& source,
                    TokenShard shard = {});
  ~TokenStreamWriter();  // removes an unfinished file
  TokenStreamWriter(const TokenStreamWriter&) = delete;
  TokenStreamWriter& operator=(const TokenStreamWriter&) = delete;

  void append(std::span<const std::int32_t> ids);
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  void finish();

 private:
  void write(const void* data, std::size_t bytes, std::int64_t offset);
  void append_bytes(const void* data, std::size_t bytes);
  void start_writeback();
  [[nodiscard]] std::string header() const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::string tokenizer_;
  std::uint64_t fingerprint_;
  std::int64_t vocabulary_;
  int bytes_per_token_;
  std::int64_t tokens_ = 0;
  std::int64_t written_back_ = 0;  // bytes of which the disk's writing has begun
  int file_ = -1;
  TextStamp source_;
  TokenShard shard_;
  std::vector<std::uint16_t> narrow_;  // the ids of one append(), if two bytes hold one
  RunningChecksum checksum_;           // of the ids
};

}  // namespace tessera
