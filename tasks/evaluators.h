// Measures of a model's quality: functions of scores and labels, computed in a fixed order in fp64,
// and functions that run a model over an evaluation set on all ranks.
//
// The runs are collective. One rank evaluates each sample; the results are gathered in the order of
// the samples before they are summed. So the numbers are the same bits on every rank, for every
// number of ranks and every strategy, and also for every batch size if the encoder has this
// property.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tensor.h"
#include "sharding/context/context.h"
#include "tasks/encoding.h"

namespace tessera::tasks {

// NaN if one of the two has no variance or fewer than two values.
double pearson(std::span<const double> x, std::span<const double> y);
// Pearson correlation of the ranks.
double spearman(std::span<const double> x, std::span<const double> y);
// Ranks from 1; equal values have the mean of their ranks.
std::vector<double> average_ranks(std::span<const double> values);

// Larger is more similar: distances are negated, as in Sentence Transformers.
enum class Similarity : std::uint8_t { cosine, dot, euclidean, manhattan };
inline constexpr Similarity all_similarities[] = {Similarity::cosine, Similarity::dot,
                                                  Similarity::euclidean, Similarity::manhattan};
std::string_view name_of(Similarity similarity);
double similarity(Similarity kind, std::span<const float> u, std::span<const float> v);

// The fraction of labels that were predicted.
double accuracy(std::span<const std::int64_t> predicted, std::span<const std::int64_t> labels);
// The mean of F1 over the classes that occur: 2 TP / (2 TP + FP + FN).
double macro_f1(std::span<const std::int64_t> predicted, std::span<const std::int64_t> labels);

// Results by name; the first one decides which model is better.
using Scores = std::vector<std::pair<std::string, double>>;

struct EvaluationOptions {
  TextTokens tokens;
  std::int64_t batch_size = 32;
};

struct SentencePairs {
  std::vector<std::string> first, second;
  std::vector<double> labels;  // classes are whole numbers from 0
  [[nodiscard]] std::size_t size() const { return first.size(); }
};

// spearman_cosine, pearson_cosine, and so on for every similarity: scores against labels.
Scores evaluate_similarity(const SentencePairs& pairs, const Encode& encode,
                           const EvaluationOptions& options, const Context& context);

// The outputs of a head for embeddings u and v, both [batch, dimension] fp32: [batch, classes].
using Classify = std::function<Tensor(const Tensor& u, const Tensor& v)>;
// accuracy, f1_macro: the largest output against the label.
Scores evaluate_classification(const SentencePairs& pairs, const Encode& encode,
                               const Classify& classify, const EvaluationOptions& options,
                               const Context& context);

struct SentenceTriplets {
  std::vector<std::string> anchors, positives, negatives;
  [[nodiscard]] std::size_t size() const { return anchors.size(); }
};
// cosine_accuracy and so on: the fraction of anchors that are more similar to their positive.
Scores evaluate_triplets(const SentenceTriplets& triplets, const Encode& encode,
                         const EvaluationOptions& options, const Context& context);

// The mean loss of inputs and targets, int32 [batch, length]; targets of -100 are not counted.
using TokenLoss = std::function<Tensor(const Tensor& inputs, const Tensor& targets)>;
// A text of so many tokens, read on demand.
struct TokenText {
  std::int64_t tokens = 0;
  std::function<void(std::int64_t first, std::span<std::int32_t> out)> read;
};
// perplexity, loss, tokens: the text in sequences of `length`; each token except the first is
// predicted once. The sequences of a batch are the same for every world size.
Scores evaluate_perplexity(const TokenText& text, std::int64_t length, std::int64_t batch_size,
                           const TokenLoss& loss, const Context& context);

}  // namespace tessera::tasks
