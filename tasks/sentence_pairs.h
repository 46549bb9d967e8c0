// Sentence pairs: a sentence encoder trained on rows of tables, each data set with a loss of its
// own. One row is one sample.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "tasks/table.h"
#include "tasks/task.h"

namespace tessera::tasks {

// The columns of a data set: two texts and a number (cosine_similarity), two texts and a class
// (softmax), a text and one that belongs to it (multiple_negatives_ranking), a text and its
// teacher's embedding as a JSON list of numbers (mse).
enum class SentenceLoss : std::uint8_t {
  none,
  cosine_similarity,
  softmax,
  multiple_negatives_ranking,
  mse
};
// Two texts and a number (similarity), two texts and a class (accuracy), an anchor, what is like it
// and what is not (triplet).
enum class SentenceEvaluator : std::uint8_t { none, similarity, accuracy, triplet };

struct SentenceData {
  std::vector<std::string> files;
  TableOptions table;  // no columns: the first ones
  SentenceLoss loss = SentenceLoss::none;
  SentenceEvaluator evaluator = SentenceEvaluator::none;
  double label_scale = 1;           // numbers are divided by it
  std::vector<std::string> labels;  // names of classes; empty: they are numbers from 0
  std::int64_t classes = 0;
  double scale = 20;  // of multiple_negatives_ranking
};

struct SentencePairsOptions {
  std::vector<SentenceData> train;
  std::optional<SentenceData> valid;
  std::shared_ptr<const Tokenizer> tokenizer;
  // Called once, on `meta`.
  std::function<std::unique_ptr<models::SentenceEncoder>()> make_encoder;
  std::optional<std::int64_t> seq_len;  // absent: the encoder's own
  bool shuffle = true;
  bool group_by_length = false;
  std::int64_t seed = 0;
  bool reads_data = true;  // not where a run is only planned
  // Where the run's settings and their keys stand, for messages.
  std::string source, train_place, seq_len_place;
};

// Data first: what is wrong with a file is said before a model is built.
std::unique_ptr<Task> make_sentence_pairs_task(const SentencePairsOptions& options);

}  // namespace tessera::tasks
