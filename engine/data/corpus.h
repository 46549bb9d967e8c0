// A file as a long row of tokens: a text with its tokenizer, or ids that stand in it already.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/data/token_stream.h"
#include "engine/data/tokenizer.h"

namespace tessera {

// What a file may be: any bytes (tokenizer `bytes`), a text, a stream of `tessera tokenize`,
// nanoGPT's .bin (bare uint16), llm.c's .bin. Tokens are read where they are wanted (the page cache
// holds the file once for all ranks); nothing of the file is kept in the process. A file that
// becomes shorter while in use is an Error(data), never a crash. Safe to use from several threads.
//
// A text with another tokenizer than `bytes` is tokenised when it is first opened: into a stream
// beside it, FILE.<tokenizer>.tokens, which later runs use as long as text and tokenizer are the
// same. Ranks on a host wait for the one that does it. Where the folder cannot be written, the
// stream is a nameless file in the folder for temporary files.
class Corpus {
 public:
  // Throws Error(data) naming the path when it is missing, unreadable, empty or no regular file,
  // Error(configuration) for a stream of another tokenizer than the one given (`bytes` stands for
  // whatever the stream says).
  Corpus(const std::filesystem::path& path, const Tokenizer& tokenizer, int workers = 1);
  ~Corpus();
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::int64_t tokens() const { return format_.tokens; }

  // Whose ids these are; an empty name and 0 where the file does not say.
  [[nodiscard]] const std::string& tokenizer_name() const { return format_.tokenizer; }
  [[nodiscard]] std::int64_t vocabulary_size() const { return format_.vocabulary; }

  // Refuses a model that these tokens do not fit, see check_vocabulary() below; from then on an id
  // that the model has not is an Error(data) when it is read.
  void require_vocabulary(std::int64_t model_vocabulary, bool pretrained) const;

  // Tokens [first, first + out.size()).
  void read(std::int64_t first, std::span<std::int32_t> out) const;

  // Changes when the file does, in size or in one of the sampled places: a resumed run can tell
  // that it has other data.
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  void open(const std::filesystem::path& path);
  void open_tokenized(const Tokenizer& tokenizer, int workers);
  void recognise(const Tokenizer& tokenizer, int workers);
  [[nodiscard]] std::string beginning() const;
  void read_bytes(std::int64_t first, std::span<unsigned char> out) const;

  std::filesystem::path path_;
  int file_ = -1;
  std::int64_t file_bytes_ = 0;
  TokenStreamFormat format_;
  mutable std::atomic<std::int64_t> limit_;  // ids are below it
};

// Throws Error(configuration), beginning with `what`, when a vocabulary of a tokenizer does not fit
// a model's: when it has more ids than the model, or, for a model that was trained before, so many
// fewer that the model must have learnt from another tokenizer. A tokenizer of unknown size (0)
// fits.
void check_vocabulary(const std::string& what, const std::string& tokenizer,
                      std::int64_t tokenizer_vocabulary, std::int64_t model_vocabulary,
                      bool pretrained);

}  // namespace tessera
