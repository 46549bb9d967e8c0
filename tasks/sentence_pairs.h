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
#include "tasks/encoding.h"
#include "tasks/losses/teacher_states.h"
#include "tasks/table.h"
#include "tasks/task.h"

namespace tessera::tasks {

// The columns of a data set: two texts and a number (cosine_similarity), two texts and a class
// (softmax), a text and a matching text (multiple_negatives_ranking), a text and its teacher's
// embedding as a JSON list of numbers (mse), a query, a matching text, another text and the
// teacher's margin, which is one number, or the teacher's scores of both texts (margin_mse).
enum class SentenceLoss : std::uint8_t {
  none,
  cosine_similarity,
  softmax,
  multiple_negatives_ranking,
  mse,
  margin_mse
};
// Two texts and a number (similarity), two texts and a class (accuracy), an anchor, a similar text
// and a dissimilar one (triplet).
enum class SentenceEvaluator : std::uint8_t { none, similarity, accuracy, triplet };

// A sentence encoder from whose embeddings the trained one learns.
class SentenceTeacher {
 public:
  SentenceTeacher() = default;
  virtual ~SentenceTeacher() = default;
  SentenceTeacher(const SentenceTeacher&) = delete;
  SentenceTeacher& operator=(const SentenceTeacher&) = delete;

  // fp32 [batch, dimension()] on the device of the tokens, outside the graph. Collective.
  [[nodiscard]] virtual Tensor embeddings(const models::TokenBatch& tokens) = 0;
  // The model that embeddings() calls.
  [[nodiscard]] virtual nn::Module& module() = 0;
  [[nodiscard]] virtual std::int64_t dimension() const = 0;
  // From a text to its own tokens.
  [[nodiscard]] virtual const TextTokens& tokens() const = 0;
  // The communication of its forwards so far.
  [[nodiscard]] virtual CommunicationStatistics communication() const = 0;
};

struct SentenceData {
  std::vector<std::string> files;
  TableOptions table;  // no columns: the first ones
  SentenceLoss loss = SentenceLoss::none;
  SentenceEvaluator evaluator = SentenceEvaluator::none;
  double label_scale = 1;           // numbers are divided by it
  std::vector<std::string> labels;  // names of classes; empty: they are numbers from 0
  std::int64_t classes = 0;
  double scale = 20;  // of multiple_negatives_ranking
  // There is a teacher: a data set of mse or margin_mse that names no columns but those of its
  // texts gets the teacher's embeddings or margins.
  bool has_teacher = false;
};

struct SentencePairsOptions {
  std::vector<SentenceData> train;
  std::optional<SentenceData> valid;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<SentenceTeacher> teacher = {};
  // With a teacher: compared beside the losses of all data sets. Both models have one tokenizer.
  std::vector<StatePair> teacher_states = {};
  // Called once, on `meta`.
  std::function<std::unique_ptr<models::SentenceEncoder>()> make_encoder;
  std::optional<std::int64_t> seq_len;  // absent: the encoder's own
  bool shuffle = true;
  bool group_by_length = false;
  std::int64_t seed = 0;
  bool reads_data = true;  // false if a run is only planned
  // The place of the run's settings and their keys, for messages.
  std::string source, train_place, seq_len_place, teacher_place, states_place;
  std::string teacher_folder = {};  // for messages, too
};

// Reads data first: errors in a file are reported before a model is built.
std::unique_ptr<ModelTask> make_sentence_pairs_task(const SentencePairsOptions& options);

}  // namespace tessera::tasks
