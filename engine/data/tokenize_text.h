// Tokenises a text of any size in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "engine/data/text_reader.h"
#include "engine/data/token_stream.h"
#include "engine/data/tokenizer.h"

namespace tessera {

struct TokenizeOptions {
  int workers = 1;  // threads that encode; they do not change the ids
  std::int64_t chunk_bytes = std::int64_t{1} << 20;
  std::int64_t longest_chunk = std::int64_t{16} << 20;
  bool ends_whole = false;  // a text whose end is the beginning of a character is refused
};

// Calls `take` with the ids of one piece of the text after another. A cut is at a place where the
// tokenizer gives the same ids for the two sides as for the whole: before a space or line end
// between two words, verified with all the text since the cut before and up to 16 KiB behind. Where
// a tokenizer's rules look further than that (at a quote that closes), the ids may be others than
// those of the whole. If a tokenizer has no place to cut (one that puts something before each text,
// say), a piece ends behind the last line within `longest_chunk`, and the next piece is a text of
// its own. Returns the number of bytes read. Throws Error(data) with the reader's name.
std::int64_t tokenize_text(TextReader& reader, const Tokenizer& tokenizer,
                           const TokenizeOptions& options,
                           const std::function<void(std::span<const std::int32_t>)>& take);
std::int64_t tokenize_text(const std::filesystem::path& path, const Tokenizer& tokenizer,
                           const TokenizeOptions& options,
                           const std::function<void(std::span<const std::int32_t>)>& take);

// Where to cut a text in memory, at most at its end. Public for tests.
std::size_t place_to_cut(std::string_view text, const Tokenizer& tokenizer);

// On a FUSE file system `inode` is 0. Error(data) with the path.
TextStamp stamp_of_text(const std::filesystem::path& path);

}  // namespace tessera
