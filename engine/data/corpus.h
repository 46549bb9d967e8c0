// A file as one sequence of tokens: a text with its tokenizer, or stored token ids.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/data/token_stream.h"
#include "engine/data/tokenizer.h"

namespace tessera {

// The file may be any bytes (tokenizer `bytes`), a text, a stream of `tessera tokenize`, nanoGPT's
// .bin (bare uint16) or llm.c's .bin. Tokens are read when they are needed; the process keeps none
// of the file (the page cache holds it once for all ranks). A file that shrinks during use is an
// Error(data), never a crash. Safe to use from several threads.
//
// With a tokenizer other than `bytes`, or if it is compressed (text_reader.h), a text is tokenised
// when it is first opened, into a stream beside it, FILE.<tokenizer>.tokens. Later runs use it as
// long as text and tokenizer are unchanged. One rank of a host does this and the others wait. If
// the folder is not writable, the stream is an unnamed file in the folder for temporary files.
class Corpus {
 public:
  // Throws Error(data) with the path if it is missing, unreadable, empty or not a regular file.
  // Throws Error(configuration) if the stream has another tokenizer than the one given; `bytes`
  // accepts every stream.
  // Throws Error(data) for a shard of a larger corpus.
  Corpus(const std::filesystem::path& path, const Tokenizer& tokenizer, int workers = 1);
  // All shards of a corpus (token_shards.h), in any order. The ids are those of the first shard,
  // then those of the second, and so on; so is the fingerprint, as if they were in one file.
  Corpus(const std::vector<std::filesystem::path>& shards, const Tokenizer& tokenizer);
  ~Corpus();
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  // The first shard's, if there are several.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::int64_t tokens() const { return format_.tokens; }

  // The tokenizer of the ids; an empty name and 0 if the file does not record it.
  [[nodiscard]] const std::string& tokenizer_name() const { return format_.tokenizer; }
  [[nodiscard]] std::uint64_t tokenizer_fingerprint() const { return format_.fingerprint; }
  [[nodiscard]] std::int64_t vocabulary_size() const { return format_.vocabulary; }

  // Refuses a model that does not match these tokens, see check_vocabulary() below. Afterwards,
  // reading an id outside the model's vocabulary is an Error(data).
  void require_vocabulary(std::int64_t model_vocabulary, bool pretrained) const;

  // Reads tokens [first, first + out.size()).
  void read(std::int64_t first, std::span<std::int32_t> out) const;

  // Changes with the file's size and with the contents of sampled places, so that a resumed run
  // detects other data.
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  struct Part {
    explicit Part() = default;
  };

 public:
  // For this class alone: a file that may be a shard.
  Corpus(const std::filesystem::path& path, const Tokenizer& tokenizer, int workers, Part);

 private:
  void open(const std::filesystem::path& path);
  void open_tokenized(const Tokenizer& tokenizer, int workers);
  void recognise(const Tokenizer& tokenizer, int workers);
  [[nodiscard]] std::string beginning() const;
  // The bytes of ids, from those of the first one on.
  void read_ids(std::int64_t first, std::span<unsigned char> out) const;
  void read_bytes(std::int64_t first, std::span<unsigned char> out) const;

  std::filesystem::path path_;
  int file_ = -1;
  std::int64_t file_bytes_ = 0;
  TokenStreamFormat format_;
  mutable std::atomic<std::int64_t> limit_;  // ids are below it
  // Those shards that hold tokens, and the place of each one's first token; empty for one file.
  std::vector<std::unique_ptr<const Corpus>> parts_;
  std::vector<std::int64_t> firsts_;
};

// Throws Error(configuration), beginning with `what`, if a tokenizer's vocabulary does not fit a
// model: it has more ids than the model, or, for a pretrained model, so many fewer that the model
// must have learnt from another tokenizer. A tokenizer of unknown size (0) fits.
void check_vocabulary(const std::string& what, const std::string& tokenizer,
                      std::int64_t tokenizer_vocabulary, std::int64_t model_vocabulary,
                      bool pretrained);

}  // namespace tessera
