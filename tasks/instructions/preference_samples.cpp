// Which pairs are trained on, and their tokens in a batch.
#include "tasks/instructions/preference_samples.h"

#include <algorithm>

#include "base/counted.h"
#include "base/error.h"
#include "engine/data/permutation.h"

namespace tessera::tasks {
namespace {

constexpr std::int32_t no_answer = -100;

}  // namespace

PreferenceSamples::PreferenceSamples(std::shared_ptr<const ConversationCorpus> corpus,
                                     const PreferenceSampleOptions& options)
    : corpus_(std::move(corpus)), options_(options) {
  TESSERA_REQUIRE(options_.seq_len > 0, "PreferenceSamples needs seq_len > 0, got {}",
                  options_.seq_len);
  TESSERA_REQUIRE(corpus_->rows() % 2 == 0, "PreferenceSamples of {} rows", corpus_->rows());
  counts_.pairs = corpus_->rows() / 2;
  for (std::int64_t pair = 0; pair < counts_.pairs; ++pair) {
    if (!has_answers(pair)) {
      ++counts_.without_answer;
      continue;
    }
    if (!differs(pair)) {
      ++counts_.without_difference;
      continue;
    }
    pairs_.push_back(static_cast<std::int32_t>(pair));
    std::int64_t cut = 0;
    for (const std::int64_t row : {2 * pair, 2 * pair + 1}) {
      cut += corpus_->tokens(row) - 1 - places_of(row);
      counts_.places += places_of(row);
    }
    counts_.cut += cut > 0 ? 1 : 0;
    counts_.cut_tokens += cut;
  }
  TESSERA_CHECK(!pairs_.empty(), ErrorCode::data,
                "data file {}: none of {} has two different answers within the first {}; raise "
                "model.seq_len, or give pairs with shorter prompts",
                corpus_->path(), counted(counts_.pairs, "pair"),
                counted(options_.seq_len + 1, "token"));
}

PreferenceSamples::Counts& PreferenceSamples::Counts::operator+=(const Counts& other) {
  pairs += other.pairs;
  without_answer += other.without_answer;
  without_difference += other.without_difference;
  cut += other.cut;
  cut_tokens += other.cut_tokens;
  places += other.places;
  return *this;
}

std::vector<std::pair<std::string, std::int64_t>> PreferenceSamples::Counts::by_name() const {
  return {{"pairs", pairs},
          {"left_out_without_answer", without_answer},
          {"left_out_without_difference", without_difference},
          {"cut_at_seq_len", cut},
          {"tokens_cut_off", cut_tokens},
          {"tokens", places}};
}

std::int64_t PreferenceSamples::places_of(std::int64_t row) const {
  return std::min(corpus_->tokens(row) - 1, options_.seq_len);
}

bool PreferenceSamples::has_answers(std::int64_t pair) const {
  const auto has = [this](std::int64_t row) {
    const std::int64_t first = corpus_->first_that_counts(row);
    return first > 0 && first <= options_.seq_len;
  };
  return has(2 * pair) && has(2 * pair + 1);
}

bool PreferenceSamples::differs(std::int64_t pair) const {
  const std::int64_t places = places_of(2 * pair);
  if (places_of(2 * pair + 1) != places) return true;
  return corpus_->read(2 * pair, places + 1).ids != corpus_->read(2 * pair + 1, places + 1).ids;
}

std::int32_t PreferenceSamples::pair_of(std::int64_t sample) const {
  return pairs_[place_in_epoch(sample, samples_per_epoch(), options_.shuffle, options_.seed)];
}

std::unique_ptr<PreferenceBatch> PreferenceSamples::batch(
    std::span<const std::int64_t> samples) const {
  TESSERA_REQUIRE(!samples.empty(), "a batch has at least one sample");
  auto batch = std::make_unique<PreferenceBatch>();
  batch->samples = batch->weight = static_cast<std::int64_t>(samples.size());
  std::vector<std::int64_t> rows;
  for (const std::int64_t rejected : {0, 1}) {
    for (const std::int64_t sample : samples) {
      rows.push_back(2 * std::int64_t{pair_of(sample)} + rejected);
      batch->length = std::max(batch->length, places_of(rows.back()));
    }
  }
  const std::size_t places = rows.size() * static_cast<std::size_t>(batch->length);
  batch->inputs.assign(places, options_.padding_id);
  batch->targets.assign(places, no_answer);
  for (std::size_t line = 0; line < rows.size(); ++line) add(rows[line], line, *batch);
  return batch;
}

void PreferenceSamples::add(std::int64_t row, std::size_t line, PreferenceBatch& batch) const {
  const std::int64_t places = places_of(row);
  const ConversationTokens tokens = corpus_->read(row, places + 1);
  const std::size_t begin = line * static_cast<std::size_t>(batch.length);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(places); ++i) {
    batch.inputs[begin + i] = tokens.ids[i];
    if (!tokens.counts[i + 1]) continue;
    batch.targets[begin + i] = tokens.ids[i + 1];
    ++count;
  }
  batch.counts.push_back(static_cast<float>(count));
  batch.tokens += places;
}

}  // namespace tessera::tasks
