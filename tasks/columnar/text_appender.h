// Texts as one sequence of tokens in a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <future>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/token_stream.h"
#include "engine/data/tokenizer.h"

namespace tessera::tasks {

// The stream that a command writes. A shard may have no tokens.
struct TokenOutput {
  std::filesystem::path path;
  TokenShard shard = {};
};

// Appends texts to a stream. A text is encoded by itself, and behind it comes the tokenizer's token
// that ends a text, or, if it has none, a newline, which belongs to the text. `workers` threads
// encode some MiB at a time; they do not change the ids.
class TextAppender {
 public:
  TextAppender(const Tokenizer& tokenizer, int workers, TokenStreamWriter& writer);
  TextAppender(const TextAppender&) = delete;
  TextAppender& operator=(const TextAppender&) = delete;

  void add(std::string_view text);
  // A text that has its own end: nothing comes behind it.
  void add_whole(std::string_view text);
  // Appends what has been added. The stream is not finished.
  void finish();

 private:
  // One behind the other, and where each one ends.
  struct Texts {
    std::string bytes;
    std::vector<std::size_t> ends;
    std::vector<bool> whole;  // has its own end
  };
  void add(std::string_view text, bool whole);
  [[nodiscard]] std::vector<std::int32_t> encode(const Texts& texts) const;
  void encode_added();
  void append_first();

  const Tokenizer& tokenizer_;
  int workers_;
  TokenStreamWriter& writer_;
  Texts added_;
  std::deque<std::future<std::vector<std::int32_t>>> running_;  // in order; ends before the rest
};

}  // namespace tessera::tasks
