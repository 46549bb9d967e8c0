// Does not keep offsets: most training needs only ids, and offsets would take most of the time.
// token_places.cpp finds the places that encode_cut() asks for.
#include "tokenizers/pipeline/pipeline.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tokenizers/pipeline/word_cache.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {

// The end of the chain of stages: calls the model only for words that are not in the cache.
class PipelineTokenizer::WordSink final : public PieceSink {
 public:
  explicit WordSink(const VocabularyModel& model) : model_(model), scratch_(model.scratch()) {}

  void set_output(std::vector<std::int32_t>& ids) { ids_ = &ids; }
  void take(const Piece& piece) override {
    const std::string_view word = piece.text;
    if (!WordCache::takes(word)) {
      model_.encode(word, scratch_.get(), *ids_);
      return;
    }
    const std::uint64_t hash = WordCache::hash_of(word);
    if (const WordCache::Answer known = cache_.find(word, hash); known.found) {
      ids_->insert(ids_->end(), known.ids.begin(), known.ids.end());
      return;
    }
    const std::size_t before = ids_->size();
    model_.encode(word, scratch_.get(), *ids_);
    cache_.insert(word, hash, std::span(*ids_).subspan(before));
  }

 private:
  const VocabularyModel& model_;
  std::unique_ptr<VocabularyModel::Scratch> scratch_;
  WordCache cache_;
  std::vector<std::int32_t>* ids_ = nullptr;
};

struct PipelineTokenizer::Workplace {
  explicit Workplace(const PipelineParts& tokenizer) : words(*tokenizer.model) {
    for (const MakeStage& make : tokenizer.pre_tokenizer) stages.push_back(make());
    for (std::size_t i = 0; i + 1 < stages.size(); ++i) stages[i]->set_next(*stages[i + 1]);
    if (!stages.empty()) stages.back()->set_next(words);
  }
  [[nodiscard]] PieceSink& first() {
    return stages.empty() ? static_cast<PieceSink&>(words) : *stages.front();
  }

  WordSink words;
  std::vector<std::unique_ptr<PreTokenizerStage>> stages;
  std::string valid;       // the text as UTF-8, if it is not valid
  std::string normalized;  // one part of it
  std::vector<TextPart> parts;
  std::vector<TextPart> inner;
};

PipelineTokenizer::PipelineTokenizer(PipelineParts parts) : parts_(std::move(parts)) {
  vocabulary_size_ = static_cast<std::int64_t>(parts_.model->tokens().size());
  if (!parts_.added.by_id().empty()) {
    const std::int64_t last = parts_.added.by_id().rbegin()->first;
    vocabulary_size_ = std::max(vocabulary_size_, last + 1);
  }
}

PipelineTokenizer::~PipelineTokenizer() = default;

std::unique_ptr<PipelineTokenizer::Workplace> PipelineTokenizer::take_workplace() const {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto place = std::move(free_.back());
      free_.pop_back();
      return place;
    }
  }
  return std::make_unique<Workplace>(parts_);
}

template <class Took>
std::vector<std::int32_t> PipelineTokenizer::encode_parts(std::string_view text,
                                                          const Took& took) const {
  std::vector<std::int32_t> ids;
  std::unique_ptr<Workplace> place = take_workplace();  // lost if an exception is thrown
  place->words.set_output(ids);
  place->parts.clear();
  parts_.added.cut_text(as_utf8(text, place->valid), place->parts);
  for (const TextPart& part : place->parts) {
    const std::size_t before = ids.size();
    if (part.id) {
      ids.push_back(*part.id);
    } else {
      encode_part(part, *place, ids);
    }
    took(part, std::span(std::as_const(ids)).subspan(before), before);
  }
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(place));
  return ids;
}

std::vector<std::int32_t> PipelineTokenizer::encode(std::string_view text) const {
  return encode_parts(text, [](const TextPart&, std::span<const std::int32_t>, std::size_t) {});
}

CutTokens PipelineTokenizer::encode_cut(std::string_view text,
                                        std::span<const std::size_t> places) const {
  std::string copy;
  TESSERA_CHECK(as_utf8(text, copy).data() == text.data(), ErrorCode::data,
                "the text is not UTF-8");
  CutTokens tokens;
  tokens.cuts.resize(places.size());
  tokens.ids = encode_parts(
      text, [&](const TextPart& part, std::span<const std::int32_t> ids, std::size_t before) {
        for (std::size_t i = 0; i < places.size(); ++i) {
          CutTokens::Cut& cut = tokens.cuts[i];
          if (places[i] >= part.begin + part.text.size()) {
            cut = {before + ids.size(), before + ids.size()};
          } else if (places[i] > part.begin) {
            const CutTokens::Cut inner =
                part.id ? CutTokens::Cut{0, 1} : cut_of(part.text, places[i] - part.begin, ids);
            cut = {before + inner.ended, before + inner.begun};
          }
        }
      });
  return tokens;
}

void PipelineTokenizer::encode_part(const TextPart& part, Workplace& place,
                                    std::vector<std::int32_t>& ids) const {
  std::string_view text = part.text;
  bool first = part.begin == 0;
  if (parts_.normalizer) {
    text = parts_.normalizer->apply(text, place.normalized);
    first = first && !(parts_.looks_at_beginning && parts_.normalizer->drops_beginning(part.text));
  }
  place.inner.clear();
  parts_.added.cut_normalized(text, place.inner);
  for (const TextPart& inner : place.inner) {
    if (inner.id) {
      ids.push_back(*inner.id);
    } else if (!inner.text.empty()) {
      place.first().take({inner.text, first && inner.begin == 0});
    }
  }
}

std::vector<std::int32_t> PipelineTokenizer::encode_sequence(std::string_view text,
                                                             std::int64_t max_length) const {
  std::vector<std::int32_t> ids = encode(text);
  if (max_length > 0) {
    const std::int64_t added = parts_.post_processor.added();
    TESSERA_CHECK(max_length >= added, ErrorCode::configuration,
                  "sequences of at most {} tokens have no room for the {} special tokens of "
                  "tokenizer {}",
                  max_length, added, parts_.name);
    const std::int64_t excess = static_cast<std::int64_t>(ids.size()) - (max_length - added);
    if (excess > 0) {
      ids.erase(parts_.truncate_left ? ids.begin() : ids.end() - excess,
                parts_.truncate_left ? ids.begin() + excess : ids.end());
    }
  }
  return parts_.post_processor.apply(std::move(ids));
}

std::int32_t PipelineTokenizer::padding_id() const {
  return parts_.padding_id.value_or(parts_.end_of_text.value_or(0));
}

std::string PipelineTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::vector<std::string> tokens;
  const std::vector<std::string>& known = parts_.model->tokens();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int32_t id = ids[i];
    TESSERA_CHECK(id >= 0 && id < vocabulary_size_, ErrorCode::data,
                  "token {} at position {} is not in the vocabulary of {} tokens", id, i,
                  vocabulary_size_);
    const auto added = parts_.added.by_id().find(id);
    const bool is_added = added != parts_.added.by_id().end();
    // An id in a gap of the vocabulary, which is not a token, is skipped.
    if (!is_added && static_cast<std::size_t>(id) >= known.size()) continue;
    const std::string& token =
        is_added ? added->second.decoded : known[static_cast<std::size_t>(id)];
    if (!parts_.added.is_special(token)) tokens.push_back(token);
  }
  return parts_.decoder.decode(std::move(tokens));
}

}  // namespace tessera::tokenizers
