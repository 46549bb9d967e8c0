// A tokenizer from the parts that its file names, in order: added tokens, normalizer,
// pre-tokenizer, model, post-processor; and the decoder for the way back.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer.h"
#include "tokenizers/pipeline/added_tokens.h"
#include "tokenizers/pipeline/decoder.h"
#include "tokenizers/pipeline/normalizer.h"
#include "tokenizers/pipeline/post_processor.h"
#include "tokenizers/pipeline/pre_tokenizer.h"
#include "tokenizers/pipeline/vocabulary_model.h"

namespace tessera::tokenizers {

struct PipelineParts {
  std::string name;
  std::uint64_t fingerprint = 0;
  std::unique_ptr<VocabularyModel> model;
  std::unique_ptr<Normalizer> normalizer;  // may be none
  AddedTokens added;
  std::vector<MakeStage> pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
  bool looks_at_beginning = false;  // the pre-tokenizer needs to know where a text begins
  bool truncate_left = false;
  std::optional<std::int32_t> padding_id;
  std::optional<std::int32_t> end_of_text;
};

// Safe to use from several threads: each call takes a workplace with its own word cache, and
// returns it for the next call.
class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(PipelineParts parts);
  ~PipelineTokenizer() override;

  [[nodiscard]] std::string_view name() const override { return parts_.name; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return parts_.fingerprint; }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return vocabulary_size_; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override;
  [[nodiscard]] CutTokens encode_cut(std::string_view text,
                                     std::span<const std::size_t> places) const override;
  [[nodiscard]] std::vector<std::int32_t> encode_sequence(std::string_view text,
                                                          std::int64_t max_length) const override;
  [[nodiscard]] std::int32_t padding_id() const override;
  [[nodiscard]] std::optional<std::int32_t> end_of_text() const override {
    return parts_.end_of_text;
  }
  // Without the special tokens, as the `tokenizers` package decodes.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override;

 private:
  class WordSink;
  struct Workplace;
  std::unique_ptr<Workplace> take_workplace() const;
  void encode_part(const TextPart& part, Workplace& place, std::vector<std::int32_t>& ids) const;
  // Encodes all parts of the text; calls took(part, ids, before) after each, with its ids and the
  // number of ids before them.
  template <class Took>
  std::vector<std::int32_t> encode_parts(std::string_view text, const Took& took) const;
  // A place in a part that is not an added token, in bytes from its beginning; `ids` are the
  // part's.
  [[nodiscard]] CutTokens::Cut cut_of(std::string_view part, std::size_t place,
                                      std::span<const std::int32_t> ids) const;
  [[nodiscard]] std::string_view token_text(std::int32_t id) const;

  PipelineParts parts_;
  std::int64_t vocabulary_size_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workplace>> free_;
};

}  // namespace tessera::tokenizers
