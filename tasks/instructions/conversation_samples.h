// Conversations as the rows of batches: one in each row, or several that are packed into one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tasks/columnar/conversation_corpus.h"
#include "tasks/task.h"

namespace tessera::tasks {

struct ConversationSampleOptions {
  // The most places of a row: a conversation of n tokens takes n - 1, in each of which the model
  // reads a token and predicts the next one. What is longer is cut at its end.
  std::int64_t seq_len = 0;
  bool packing = false;
  bool shuffle = true;
  std::uint64_t seed = 0;
  std::int32_t padding_id = 0;
};

// Rows of `length` tokens. A target that is not in the loss is -100.
struct ConversationBatch final : Prepared {
  std::int64_t length = 0;
  std::vector<std::int32_t> inputs, targets;
  // With packing: for each place where its conversation begins in the row. The padding at a row's
  // end is one of its own.
  std::vector<std::int32_t> starts = {};
  // If several ranks hold the rows together: `length`, inputs and targets are those of this rank's
  // places, the first of which is this one; `starts` has all places of the rows.
  std::int64_t first = 0;
};

// A sample is a conversation or, with packing, some whose places together are at most seq_len: the
// best fit, the longest first. A sample has the same conversations in every epoch, and each
// conversation is in one sample. An epoch takes every sample once, in the order of their first
// conversations or shuffled, each epoch in another order. Conversations without a token that counts
// within seq_len are left out.
class ConversationSamples {
 public:
  // Error(data) if all conversations are left out.
  ConversationSamples(std::shared_ptr<const ConversationCorpus> corpus,
                      const ConversationSampleOptions& options);

  [[nodiscard]] std::int64_t samples_per_epoch() const {
    return static_cast<std::int64_t>(begins_.size()) - 1;
  }
  [[nodiscard]] const ConversationCorpus& corpus() const { return *corpus_; }
  [[nodiscard]] std::int32_t padding_id() const { return options_.padding_id; }
  // The rows of the corpus that are in a sample; samples are numbered on over epochs.
  [[nodiscard]] std::span<const std::int32_t> rows_of(std::int64_t sample) const;
  // The places of a sample, without padding.
  [[nodiscard]] std::int64_t places_of_sample(std::int64_t sample) const;
  // Rows of seq_len places with packing, else of as many as the longest conversation has.
  [[nodiscard]] std::unique_ptr<ConversationBatch> batch(
      std::span<const std::int64_t> samples) const;

  struct Counts {
    std::int64_t conversations = 0;
    std::int64_t left_out = 0;    // without a token in the loss
    std::int64_t cut = 0;         // of those that are not left out
    std::int64_t cut_tokens = 0;  // at their ends
    std::int64_t places = 0;      // of an epoch, without padding

    Counts& operator+=(const Counts& other);
    // As Task::data_counts().
    [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> by_name() const;
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }
  // The conversations that are left out because none of their tokens is in the loss, with the first
  // of them, or empty. Reads the data files up to it.
  [[nodiscard]] std::string unanswered_note() const;

 private:
  [[nodiscard]] std::int64_t places_of(std::int32_t row) const;
  void add(std::int32_t row, std::size_t line, std::int64_t at, ConversationBatch& batch) const;

  std::shared_ptr<const ConversationCorpus> corpus_;
  ConversationSampleOptions options_;
  // The rows of all samples, and where those of each begin.
  std::vector<std::int32_t> rows_;
  std::vector<std::int64_t> begins_;
  Counts counts_;
  std::int64_t unanswered_ = 0;  // rows without a token that counts, and the first one
  std::int64_t first_unanswered_ = 0;
};

}  // namespace tessera::tasks
