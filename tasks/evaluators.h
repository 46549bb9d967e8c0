// How good a model is, in numbers: what is computed from scores and labels in one order in fp64,
// and what runs a model over an evaluation set on all ranks.
//
// The runs are collective. Each sample is evaluated once, by one rank; what the ranks found is
// brought together in the order of the samples before anything is summed. So the numbers do not
// depend on how many ranks there are, on the strategy or, as far as the encoder is so, on the
// batches: the same bits on every rank.
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

// NaN where one of the two has no variance, or fewer than two values.
double pearson(std::span<const double> x, std::span<const double> y);
// Pearson of the ranks.
double spearman(std::span<const double> x, std::span<const double> y);
// Ranks from 1; equal values have the mean of theirs.
std::vector<double> average_ranks(std::span<const double> values);

// Larger is more alike: distances are negative, as Sentence Transformers has them.
enum class Similarity : std::uint8_t { cosine, dot, euclidean, manhattan };
inline constexpr Similarity all_similarities[] = {Similarity::cosine, Similarity::dot,
                                                  Similarity::euclidean, Similarity::manhattan};
std::string_view name_of(Similarity similarity);
double similarity(Similarity kind, std::span<const float> u, std::span<const float> v);

// The share of labels that were predicted.
double accuracy(std::span<const std::int64_t> predicted, std::span<const std::int64_t> labels);
// The mean over the classes that occur of F1: 2 TP / (2 TP + FP + FN).
double macro_f1(std::span<const std::int64_t> predicted, std::span<const std::int64_t> labels);

// Results by name, the first the one that says which model is better.
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

// spearman_cosine, pearson_cosine, and so on for every similarity: labels against scores.
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
// cosine_accuracy and so on: the share of anchors that are more like their positive.
Scores evaluate_triplets(const SentenceTriplets& triplets, const Encode& encode,
                         const EvaluationOptions& options, const Context& context);

// The mean loss of inputs and targets, int32 [batch, length], where -100 does not count.
using TokenLoss = std::function<Tensor(const Tensor& inputs, const Tensor& targets)>;
// A text of so many tokens, read where they are wanted.
struct TokenText {
  std::int64_t tokens = 0;
  std::function<void(std::int64_t first, std::span<std::int32_t> out)> read;
};
// perplexity, loss, tokens: the text in sequences of `length`, each token but the first predicted
// once. The sequences of a batch are the same on any world.
Scores evaluate_perplexity(const TokenText& text, std::int64_t length, std::int64_t batch_size,
                           const TokenLoss& loss, const Context& context);

}  // namespace tessera::tasks
