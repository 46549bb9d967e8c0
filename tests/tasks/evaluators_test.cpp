// Evaluators: known values, and the same bits on any number of ranks, under every strategy and in
// any batches.
#include "tasks/evaluators.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/random.h"
#include "sharding/fully_shard.h"
#include "support/errors.h"
#include "support/one_thread.h"
#include "tasks/encoding_testing.h"

namespace tessera::tasks {
namespace {

using testing::byte_tokens;
using testing::ByteEncoder;
using testing::numbered_texts;
using Reals = std::vector<double>;

// The expected values come from scipy and scikit-learn.
TEST(Evaluators, Correlations) {
  const Reals x{0.5, 2.25, -1, 3, 3, 0.1, 7.5, -2};
  const Reals y{1, 0.2, 0.2, 4, 2, 0.2, 3, -5.5};
  EXPECT_NEAR(pearson(x, y), 0.7335948222258688, 1e-14);
  EXPECT_NEAR(spearman(x, y), 0.8835852486128687, 1e-14);
  EXPECT_EQ(average_ranks(y), (Reals{5, 3, 3, 8, 6, 3, 7, 1}));
  EXPECT_EQ(average_ranks(x), (Reals{4, 5, 2, 6.5, 6.5, 3, 8, 1}));
  EXPECT_NEAR(pearson(x, x), 1, 1e-14);
  EXPECT_NEAR(spearman(x, Reals{-1, -4, 0, -9, -9, -0.5, -70, 3}), -1, 1e-14);
}

TEST(Evaluators, CorrelationsThatAreNotDefined) {
  EXPECT_TRUE(std::isnan(pearson(Reals{1, 1, 1}, Reals{1, 2, 3})));
  EXPECT_TRUE(std::isnan(spearman(Reals{1, 2, 3}, Reals{4, 4, 4})));
  EXPECT_TRUE(std::isnan(pearson(Reals{1}, Reals{1})));
  EXPECT_TRUE(std::isnan(spearman(Reals{1, std::nan(""), 3}, Reals{1, 2, 3})));
  EXPECT_THROW((void)pearson(Reals{1, 2}, Reals{1}), std::logic_error);
}

TEST(Evaluators, Similarities) {
  const std::vector<float> u{3, 0, 4}, v{0, 5, 12}, zero{0, 0, 0};
  EXPECT_DOUBLE_EQ(similarity(Similarity::cosine, u, v), 48.0 / (5 * 13));
  EXPECT_DOUBLE_EQ(similarity(Similarity::dot, u, v), 48);
  EXPECT_DOUBLE_EQ(similarity(Similarity::euclidean, u, v), -std::sqrt(9.0 + 25 + 64));
  EXPECT_DOUBLE_EQ(similarity(Similarity::manhattan, u, v), -16);
  EXPECT_EQ(similarity(Similarity::cosine, u, zero), 0);
}

TEST(Evaluators, AccuracyAndF1OfClasses) {
  const std::vector<std::int64_t> predicted{0, 2, 2, 2, 1, 1, 0}, labels{0, 1, 2, 2, 1, 0, 0};
  EXPECT_DOUBLE_EQ(accuracy(predicted, labels), 5.0 / 7);
  EXPECT_NEAR(macro_f1(predicted, labels), 0.7, 1e-15);
}

struct EvaluatedSamples {
  SentencePairs pairs;
  SentenceTriplets triplets;
};

EvaluatedSamples make_samples(std::size_t count) {
  EvaluatedSamples samples;
  samples.pairs.first = samples.triplets.anchors = numbered_texts(count, 1);
  samples.pairs.second = samples.triplets.positives = numbered_texts(count, 2);
  samples.triplets.negatives = numbered_texts(count, 3);
  for (std::size_t i = 0; i < count; ++i) {
    samples.pairs.labels.push_back(static_cast<double>(i * i % 3));
  }
  return samples;
}

struct Found {
  Scores similarity, classification, triplets;
  friend bool operator==(const Found&, const Found&) = default;
};

Found evaluate(int world, const ShardingOptions& sharding, std::size_t samples,
               std::int64_t batch_size, bool unsharded = false) {
  const EvaluatedSamples all = make_samples(samples);
  std::map<int, Found> by_rank;
  std::mutex mutex;
  launch(world, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(6);
    ByteEncoder net;
    ShardedModel model = fully_shard(net, context, sharding);
    const EvaluationOptions options{.tokens = byte_tokens(), .batch_size = batch_size};
    const Encode encode = [&](const models::TokenBatch& tokens) { return net.forward(tokens); };
    const Classify classify = [&](const Tensor& u, const Tensor& v) {
      return softmax_logits(u, v, net.head);
    };
    const auto run = [&] {
      return Found{evaluate_similarity(all.pairs, encode, options, context),
                   evaluate_classification(all.pairs, encode, classify, options, context),
                   evaluate_triplets(all.triplets, encode, options, context)};
    };
    const auto run_unsharded = [&] {
      const auto whole = model.unsharded();
      return run();
    };
    Found found = unsharded ? run_unsharded() : run();
    const std::lock_guard lock(mutex);
    by_rank[context.rank()] = std::move(found);
  });
  for (const auto& [rank, found] : by_rank) EXPECT_EQ(found, by_rank[0]) << "rank " << rank;
  return by_rank[0];
}

ShardingOptions options_of(const StrategyRow& row, int world) {
  return {.strategy = row.strategy,
          .wrap = WrapPolicy::list({"table", "layer", "head"}),
          .group_size = row.shards == ShardGroup::group ? world : 0};
}

// One sample after the other, using only the arithmetic of the code under test.
Found by_hand(std::size_t count) {
  const EvaluatedSamples all = make_samples(count);
  Found found;
  launch(1, [&](Context&) {
    const testing::OneThread one_thread;
    manual_seed(6);
    const ByteEncoder net;
    const NoGradGuard no_grad;
    const auto encode = [&](const std::string& text) {
      const std::vector<std::int32_t> ids = ByteTokenizer().encode(text.substr(0, 60));
      std::vector<float> row;
      const Tensor embedding = net.forward(make_token_batch({ids}, 0, Device::cpu()));
      for (const double value : embedding.to_vector()) row.push_back(static_cast<float>(value));
      return row;
    };
    std::map<Similarity, Reals> scores;
    std::map<Similarity, double> right;
    std::vector<std::int64_t> predicted, labels;
    for (std::size_t i = 0; i < count; ++i) {
      const auto u = encode(all.pairs.first[i]), v = encode(all.pairs.second[i]);
      const auto negative = encode(all.triplets.negatives[i]);
      for (const Similarity kind : all_similarities) {
        scores[kind].push_back(similarity(kind, u, v));
        right[kind] += similarity(kind, u, v) > similarity(kind, u, negative) ? 1 : 0;
      }
      const Reals outputs =
          softmax_logits(Tensor::from(u, {1, 6}), Tensor::from(v, {1, 6}), net.head).to_vector();
      predicted.push_back(std::max_element(outputs.begin(), outputs.end()) - outputs.begin());
      labels.push_back(static_cast<std::int64_t>(all.pairs.labels[i]));
    }
    for (const Similarity kind : all_similarities) {
      const std::string name(name_of(kind));
      found.similarity.emplace_back("spearman_" + name, spearman(all.pairs.labels, scores[kind]));
      found.similarity.emplace_back("pearson_" + name, pearson(all.pairs.labels, scores[kind]));
      found.triplets.emplace_back(name + "_accuracy", right[kind] / static_cast<double>(count));
    }
    found.classification = {{"accuracy", accuracy(predicted, labels)},
                            {"f1_macro", macro_f1(predicted, labels)}};
  });
  return found;
}

TEST(Evaluators, EverySampleOnceOnAnyWorldInAnyBatches) {
  for (const std::size_t samples : {2, 3, 23}) {  // also fewer samples than ranks
    const Found expected = by_hand(samples);
    EXPECT_EQ(expected.similarity.front().first, "spearman_cosine");
    for (const int world : {1, 2, 3, 4, 5}) {
      for (const std::int64_t batch_size : {1, 5, 64}) {
        EXPECT_EQ(evaluate(world, {.strategy = Strategy::no_shard}, samples, batch_size), expected)
            << samples << " samples on " << world << " in batches of " << batch_size;
      }
    }
  }
}

TEST(Evaluators, EveryStrategyHasTheSameBits) {
  const Found expected = by_hand(10);
  for (const int world : {2, 3}) {
    for (const StrategyRow& row : strategy_table) {
      EXPECT_EQ(evaluate(world, options_of(row, world), 10, 4), expected) << name_of(row.strategy);
      EXPECT_EQ(evaluate(world, options_of(row, world), 2, 4, true), by_hand(2))
          << name_of(row.strategy);
    }
  }
}

TEST(Evaluators, NothingToEvaluateIsAnError) {
  launch(1, [](Context& context) {
    const Encode encode = [](const models::TokenBatch&) { return Tensor{}; };
    EXPECT_THROW((void)evaluate_similarity({}, encode, {.tokens = byte_tokens()}, context), Error);
    SentencePairs empty_text{{"a", ""}, {"b", "c"}, {1, 2}};
    testing::error_of(
        [&] { return evaluate_similarity(empty_text, encode, {.tokens = byte_tokens()}, context); },
        ErrorCode::data);
  });
}

// The results of a diverged model must not be used as the best score, nor be compared.
TEST(Evaluators, NotANumberIsNotAScore) {
  launch(1, [](Context& context) {
    const EvaluatedSamples all = make_samples(6);
    const EvaluationOptions options{.tokens = byte_tokens(), .batch_size = 2};
    const Encode encode = [](const models::TokenBatch& tokens) {
      return Tensor::full({tokens.ids.size(0), 3}, std::nan(""));
    };
    const Classify classify = [](const Tensor& u, const Tensor&) { return u; };
    for (const auto& [name, score] : evaluate_triplets(all.triplets, encode, options, context)) {
      EXPECT_TRUE(name == "samples" || std::isnan(score)) << name;
    }
    testing::error_of(
        [&] { return evaluate_classification(all.pairs, encode, classify, options, context); },
        ErrorCode::numeric);
  });
}

// A language model that uses only the previous token.
struct Bigrams : nn::Module {
  Bigrams() { table = register_module("table", nn::Embedding(16, 16)); }
  nn::Embedding table;
};

Scores perplexity_on(int world, Strategy strategy, std::int64_t length, std::int64_t batch_size,
                     std::size_t tokens) {
  std::vector<std::int32_t> text;
  for (std::size_t i = 0; i < tokens; ++i) {
    text.push_back(static_cast<std::int32_t>(i * i * 7 / 3 % 16));
  }
  std::map<int, Scores> by_rank;
  std::mutex mutex;
  launch(world, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(8);
    Bigrams net;
    const ShardedModel model = fully_shard(net, context, {.strategy = strategy});
    const TokenLoss loss = [&](const Tensor& inputs, const Tensor& targets) {
      EXPECT_LE(inputs.size(0), batch_size);
      EXPECT_LE(inputs.size(1), length);
      return cross_entropy(net.table(inputs), targets);
    };
    const TokenText all{static_cast<std::int64_t>(text.size()),
                        [&](std::int64_t first, std::span<std::int32_t> out) {
                          std::copy_n(text.begin() + first, out.size(), out.begin());
                        }};
    Scores scores = evaluate_perplexity(all, length, batch_size, loss, context);
    const std::lock_guard lock(mutex);
    by_rank[context.rank()] = std::move(scores);
  });
  for (const auto& [rank, scores] : by_rank) EXPECT_EQ(scores, by_rank[0]) << "rank " << rank;
  return by_rank[0];
}

TEST(Evaluators, PerplexityCountsEachTokenOnce) {
  for (const std::size_t tokens : {2, 7, 8, 9, 65, 100}) {
    const Scores whole = perplexity_on(1, Strategy::no_shard, 1000, 1, tokens);
    EXPECT_EQ(whole[2].second, static_cast<double>(tokens - 1));
    EXPECT_DOUBLE_EQ(whole[0].second, std::exp(whole[1].second));
    for (const int world : {1, 2, 3, 5}) {
      for (const std::int64_t batch_size : {1, 3}) {
        const Scores expected = perplexity_on(1, Strategy::no_shard, 8, batch_size, tokens);
        EXPECT_NEAR(expected[1].second, whole[1].second, 1e-6);
        EXPECT_EQ(perplexity_on(world, Strategy::full_shard, 8, batch_size, tokens), expected)
            << tokens << " tokens on " << world;
      }
    }
  }
  EXPECT_THROW((void)perplexity_on(1, Strategy::no_shard, 8, 1, 1), Error);
}

}  // namespace
}  // namespace tessera::tasks
