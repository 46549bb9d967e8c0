// Which conversations share a row, and their tokens in it.
#include "tasks/instructions/conversation_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/counted.h"
#include "base/error.h"
#include "engine/data/permutation.h"

namespace tessera::tasks {
namespace {

constexpr std::int32_t not_in_loss = -100;

// The bin of each item if items of these sizes fill bins of `capacity`: each item, the largest
// first, goes into the bin with the least room that has enough, of several the one made last.
std::vector<std::int32_t> best_fit(const std::vector<std::int64_t>& sizes, std::int64_t capacity) {
  std::vector<std::int32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return sizes[static_cast<std::size_t>(a)] > sizes[static_cast<std::size_t>(b)];
  });
  std::map<std::int64_t, std::vector<std::int32_t>> bins_by_room;
  std::vector<std::int32_t> bin_of(sizes.size());
  std::int32_t bins = 0;
  for (const std::int32_t item : order) {
    const std::int64_t size = sizes[static_cast<std::size_t>(item)];
    const auto found = bins_by_room.lower_bound(size);
    std::int64_t room = capacity;
    std::int32_t bin = 0;
    if (found == bins_by_room.end()) {
      bin = bins++;
    } else {
      room = found->first;
      bin = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) bins_by_room.erase(found);
    }
    bin_of[static_cast<std::size_t>(item)] = bin;
    if (room > size) bins_by_room[room - size].push_back(bin);
  }
  return bin_of;
}

}  // namespace

ConversationSamples::ConversationSamples(std::shared_ptr<const ConversationCorpus> corpus,
                                         const ConversationSampleOptions& options)
    : corpus_(std::move(corpus)), options_(options) {
  TESSERA_REQUIRE(options_.seq_len > 0, "ConversationSamples needs seq_len > 0, got {}",
                  options_.seq_len);
  std::vector<std::int32_t> kept;
  std::vector<std::int64_t> sizes;
  counts_.conversations = corpus_->rows();
  for (std::int32_t row = 0; row < corpus_->rows(); ++row) {
    const std::int64_t first = corpus_->first_that_counts(row);
    if (first == 0 || first > options_.seq_len) {
      ++counts_.left_out;
      if (first == 0 && unanswered_++ == 0) first_unanswered_ = row;
      continue;
    }
    kept.push_back(row);
    sizes.push_back(places_of(row));
    const std::int64_t cut = corpus_->tokens(row) - 1 - sizes.back();
    counts_.cut += cut > 0 ? 1 : 0;
    counts_.cut_tokens += cut;
    counts_.places += sizes.back();
  }
  if (kept.empty() && unanswered_ == corpus_->rows()) {
    fail(ErrorCode::data,
         "data file {}: none of {} has an answer: a message with the role assistant, or a "
         "completion; the first is {}; name the roles so, or set data.loss_on: all",
         corpus_->path(), counted(corpus_->rows(), "conversation"), corpus_->describe(0));
  }
  TESSERA_CHECK(!kept.empty(), ErrorCode::data,
                "data file {}: none of {} has a token in the loss within the first {}; raise "
                "model.seq_len, or give conversations with shorter prompts",
                corpus_->path(), counted(corpus_->rows(), "conversation"),
                counted(options_.seq_len + 1, "token"));
  begins_ = {0};
  if (!options_.packing) {
    rows_ = std::move(kept);
    begins_.resize(rows_.size() + 1);
    std::iota(begins_.begin(), begins_.end(), 0);
    return;
  }
  // Bins become samples in the order of their first conversations.
  const std::vector<std::int32_t> bin_of = best_fit(sizes, options_.seq_len);
  std::vector<std::int32_t> sample_of(kept.size(), -1);  // by bin
  std::vector<std::int64_t> counts;
  for (const std::int32_t bin : bin_of) {
    std::int32_t& sample = sample_of[static_cast<std::size_t>(bin)];
    if (sample < 0) {
      sample = static_cast<std::int32_t>(counts.size());
      counts.push_back(0);
    }
    ++counts[static_cast<std::size_t>(sample)];
  }
  begins_.resize(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), begins_.begin() + 1);
  std::vector<std::int64_t> next(begins_.begin(), begins_.end() - 1);
  rows_.resize(kept.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::int32_t sample = sample_of[static_cast<std::size_t>(bin_of[i])];
    rows_[static_cast<std::size_t>(next[static_cast<std::size_t>(sample)]++)] = kept[i];
  }
}

std::string ConversationSamples::unanswered_note() const {
  if (unanswered_ == 0) return {};
  return fmt::format(
      "{} without an answer (a message with the role assistant, or a completion) {} left out; the "
      "first is {}",
      counted(unanswered_, "conversation"), unanswered_ == 1 ? "is" : "are",
      corpus_->describe(first_unanswered_));
}

ConversationSamples::Counts& ConversationSamples::Counts::operator+=(const Counts& other) {
  conversations += other.conversations;
  left_out += other.left_out;
  cut += other.cut;
  cut_tokens += other.cut_tokens;
  places += other.places;
  return *this;
}

std::vector<std::pair<std::string, std::int64_t>> ConversationSamples::Counts::by_name() const {
  return {{"conversations", conversations},
          {"left_out_without_loss", left_out},
          {"cut_at_seq_len", cut},
          {"tokens_cut_off", cut_tokens},
          {"tokens", places}};
}

std::int64_t ConversationSamples::places_of(std::int32_t row) const {
  return std::min(corpus_->tokens(row) - 1, options_.seq_len);
}

std::span<const std::int32_t> ConversationSamples::rows_of(std::int64_t sample) const {
  const std::uint64_t index =
      place_in_epoch(sample, samples_per_epoch(), options_.shuffle, options_.seed);
  const auto begin = static_cast<std::size_t>(begins_[index]);
  return std::span(rows_).subspan(begin, static_cast<std::size_t>(begins_[index + 1]) - begin);
}

std::int64_t ConversationSamples::places_of_sample(std::int64_t sample) const {
  std::int64_t places = 0;
  for (const std::int32_t row : rows_of(sample)) places += places_of(row);
  return places;
}

std::unique_ptr<ConversationBatch> ConversationSamples::batch(
    std::span<const std::int64_t> samples) const {
  TESSERA_REQUIRE(!samples.empty(), "a batch has at least one sample");
  auto batch = std::make_unique<ConversationBatch>();
  batch->samples = static_cast<std::int64_t>(samples.size());
  batch->length = options_.packing ? options_.seq_len : 0;
  for (const std::int64_t sample : samples) {
    for (const std::int32_t row : rows_of(sample)) {
      batch->length = std::max(batch->length, places_of(row));
    }
  }
  const std::size_t places = samples.size() * static_cast<std::size_t>(batch->length);
  batch->inputs.assign(places, options_.padding_id);
  batch->targets.assign(places, not_in_loss);
  if (options_.packing) batch->starts.resize(places);
  for (std::size_t line = 0; line < samples.size(); ++line) {
    std::int64_t at = 0;
    for (const std::int32_t row : rows_of(samples[line])) {
      add(row, line, at, *batch);
      at += places_of(row);
    }
    if (!options_.packing) continue;
    const auto end = batch->starts.begin() + static_cast<std::ptrdiff_t>(line + 1) *
                                                 static_cast<std::ptrdiff_t>(batch->length);
    std::fill(end - static_cast<std::ptrdiff_t>(batch->length - at), end,
              static_cast<std::int32_t>(at));
  }
  return batch;
}

void ConversationSamples::add(std::int32_t row, std::size_t line, std::int64_t at,
                              ConversationBatch& batch) const {
  const std::int64_t places = places_of(row);
  const ConversationTokens tokens = corpus_->read(row, places + 1);
  const std::size_t begin =
      line * static_cast<std::size_t>(batch.length) + static_cast<std::size_t>(at);
  for (std::size_t i = 0; i < static_cast<std::size_t>(places); ++i) {
    batch.inputs[begin + i] = tokens.ids[i];
    if (options_.packing) batch.starts[begin + i] = static_cast<std::int32_t>(at);
    if (!tokens.counts[i + 1]) continue;
    batch.targets[begin + i] = tokens.ids[i + 1];
    ++batch.weight;
  }
  batch.tokens += places;
}

}  // namespace tessera::tasks
