// Sentence pairs: trains a sentence encoder on rows of tables. Each data set has a loss of its own,
// and each row is one sample.
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
// (softmax), a text and a matching text (multiple_negatives_ranking), a text and its teacher's
// embedding as a JSON list of numbers (mse).
enum class SentenceLoss : std::uint8_t {
  none,
  cosine_similarity,
  softmax,
  multiple_negatives_ranking,
  mse
};
// Two texts and a number (similarity), two texts and a class (accuracy), an anchor, a similar text
// and a dissimilar one (triplet).
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
  bool reads_data = true;  // false if a run is only planned
  // The place of the run's settings and their keys, for messages.
  std::string source, train_place, seq_len_place;
};

// Reads data first: errors in a file are reported before a model is built.
std::unique_ptr<ModelTask> make_sentence_pairs_task(const SentencePairsOptions& options);

}  // namespace tessera::tasks
