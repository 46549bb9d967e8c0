// A text file as a long row of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "engine/data/tokenizer.h"

namespace tessera {

// Tokens are read where they are wanted (the page cache holds the file once for all ranks); nothing
// of the file is kept in the process. A file that becomes shorter while in use is an Error(data),
// never a crash. Safe to use from several threads.
class Corpus {
 public:
  // Throws Error(data) naming the path when it is missing, unreadable, empty or no regular file.
  Corpus(const std::filesystem::path& path, const Tokenizer& tokenizer);
  ~Corpus();
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

  // Tokens [first, first + out.size()).
  void read(std::int64_t first, std::span<std::int32_t> out) const;

  // Changes when the file does, in size or in one of the sampled places: a resumed run can tell
  // that it has other data.
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  void read_bytes(std::int64_t first, std::span<unsigned char> out) const;

  std::filesystem::path path_;
  int file_ = -1;
  std::int64_t tokens_ = 0;
};

}  // namespace tessera
