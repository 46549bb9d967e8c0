// Pairs of answers as the rows of batches.
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

struct PreferenceSampleOptions {
  // The most places of a row, as ConversationSampleOptions::seq_len: what is longer is cut at its
  // end.
  std::int64_t seq_len = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
  std::int32_t padding_id = 0;
};

// Two rows of `length` tokens for each pair: first those of all chosen answers, then those of the
// rejected ones. A target that is not an answer's is -100.
struct PreferenceBatch final : Prepared {
  std::int64_t length = 0;
  std::vector<std::int32_t> inputs, targets;
  std::vector<float> counts;  // of each row's targets that are an answer's
};

// A sample is a pair. An epoch takes every sample once, in their order or shuffled, each epoch in
// another order. Left out are pairs of which an answer has no token within seq_len, and pairs whose
// answers are the same within seq_len.
class PreferenceSamples {
 public:
  // `corpus` is one of preferences. Error(data) if all pairs are left out.
  PreferenceSamples(std::shared_ptr<const ConversationCorpus> corpus,
                    const PreferenceSampleOptions& options);

  [[nodiscard]] std::int64_t samples_per_epoch() const {
    return static_cast<std::int64_t>(pairs_.size());
  }
  [[nodiscard]] const ConversationCorpus& corpus() const { return *corpus_; }
  // The pair of a sample, the number of its row in the files; samples are numbered on over epochs.
  [[nodiscard]] std::int32_t pair_of(std::int64_t sample) const;
  [[nodiscard]] std::unique_ptr<PreferenceBatch> batch(std::span<const std::int64_t> samples) const;

  struct Counts {
    std::int64_t pairs = 0;
    std::int64_t without_answer = 0, without_difference = 0;  // left out
    std::int64_t cut = 0;         // of the others, pairs of which an answer is cut
    std::int64_t cut_tokens = 0;  // at their ends
    std::int64_t places = 0;      // of an epoch, without padding

    Counts& operator+=(const Counts& other);
    // As Task::data_counts().
    [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> by_name() const;
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  [[nodiscard]] std::int64_t places_of(std::int64_t row) const;
  [[nodiscard]] bool has_answers(std::int64_t pair) const;
  [[nodiscard]] bool differs(std::int64_t pair) const;
  void add(std::int64_t row, std::size_t line, PreferenceBatch& batch) const;

  std::shared_ptr<const ConversationCorpus> corpus_;
  PreferenceSampleOptions options_;
  std::vector<std::int32_t> pairs_;  // that are not left out
  Counts counts_;
};

}  // namespace tessera::tasks
