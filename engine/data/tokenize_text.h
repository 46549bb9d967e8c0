// A text file of any size as the ids of a tokenizer, in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "engine/data/token_stream.h"
#include "engine/data/tokenizer.h"

namespace tessera {

struct TokenizeOptions {
  int workers = 1;  // threads that encode; the ids do not depend on it
  std::int64_t chunk_bytes = std::int64_t{1} << 20;
  std::int64_t longest_chunk = std::int64_t{16} << 20;
};

// Calls `take` with the ids of one piece of the text after the other. The text is cut where the
// tokenizer gives the same ids for both sides as for the whole: before a space or a line's end
// between two words, tried out with a thousand bytes on either side. Where a tokenizer allows that
// nowhere (one that puts something before each text, say), a piece ends behind the last line within
// `longest_chunk`, and the next is a text of its own. Returns the bytes that were read. Throws
// Error(data) naming the path.
std::int64_t tokenize_text(const std::filesystem::path& path, const Tokenizer& tokenizer,
                           const TokenizeOptions& options,
                           const std::function<void(std::span<const std::int32_t>)>& take);

// The same for a text at hand: where to cut it, at most at its end. Public for tests.
std::size_t place_to_cut(std::string_view text, const Tokenizer& tokenizer);

TextStamp stamp_of_text(const std::filesystem::path& path);

}  // namespace tessera
