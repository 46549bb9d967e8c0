// A language model's step with ignored labels: loss and gradient are those of the sum over all
// labels of the global batch divided by their number, however the samples are split.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "support/one_thread.h"
#include "support/step_gradient.h"
#include "trainer/trainer.h"

namespace tessera {
namespace {

using testing::StepGradient;

constexpr std::int64_t vocabulary = 11;
constexpr std::int64_t length = 6;
constexpr std::int64_t sequences = 8;  // of the global batch
constexpr std::int32_t ignored = -100;
// Labels of each sequence that count; the others are ignored.
constexpr std::int64_t uneven[sequences] = {6, 1, 0, 3, 0, 0, 5, 2};

class SmallLanguageModel : public nn::Module {
 public:
  SmallLanguageModel() {
    tokens_ = register_module("tokens", nn::Embedding(vocabulary, 12, 0.5));
    head_ = register_module("head", nn::Linear(12, vocabulary));
  }
  Tensor loss(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& labels) const {
    const Shape shape{static_cast<std::int64_t>(ids.size()) / length, length};
    const Tensor logits = head_(tokens_(Tensor::from(ids, shape)));
    return cross_entropy(logits, Tensor::from(labels, shape), ignored);
  }

 private:
  nn::Embedding tokens_;
  nn::Linear head_;
};

struct Labelled : tasks::Prepared {
  std::vector<std::int32_t> ids, labels;
};

std::unique_ptr<Labelled> labelled(std::span<const std::int64_t> numbers, bool has_labels) {
  auto batch = std::make_unique<Labelled>();
  batch->samples = static_cast<std::int64_t>(numbers.size());
  for (const std::int64_t number : numbers) {
    const std::int64_t counted = has_labels ? uneven[number % sequences] : 0;
    for (std::int64_t t = 0; t < length; ++t) {
      batch->ids.push_back(static_cast<std::int32_t>((number * 5 + t * 3) % vocabulary));
      const auto label = static_cast<std::int32_t>((number * 7 + t * t) % vocabulary);
      batch->labels.push_back(t < counted ? label : ignored);
    }
    batch->tokens += length;
    batch->weight += counted;
  }
  return batch;
}

struct LabelTaskOptions {
  bool weighs = true;
  bool has_labels = true;
};

class LabelTask : public tasks::Task {
 public:
  explicit LabelTask(const LabelTaskOptions& options) : options_(options) {}
  [[nodiscard]] nn::Module& module() override { return net_; }
  [[nodiscard]] std::vector<std::int64_t> samples_per_epoch() const override { return {sequences}; }
  [[nodiscard]] std::unique_ptr<tasks::Prepared> prepare(
      std::size_t /*data_set*/, std::span<const std::int64_t> samples) const override {
    return labelled(samples, options_.has_labels);
  }
  [[nodiscard]] std::unique_ptr<tasks::Prepared> blank(std::int64_t samples) const override {
    return prepare(0, std::vector<std::int64_t>(static_cast<std::size_t>(samples)));
  }
  [[nodiscard]] Tensor loss(const tasks::Prepared& batch, const Context& /*context*/) override {
    const auto& sample = dynamic_cast<const Labelled&>(batch);
    return net_.loss(sample.ids, sample.labels);
  }
  [[nodiscard]] bool weighs_batches() const override { return options_.weighs; }

 private:
  LabelTaskOptions options_;
  SmallLanguageModel net_;
};

// All sequences at once, without ranks and without a trainer.
StepGradient of_whole_batch() {
  const testing::OneThread one_thread;
  manual_seed(7);
  SmallLanguageModel net;
  const std::vector<std::int64_t> numbers{0, 1, 2, 3, 4, 5, 6, 7};
  const auto batch = labelled(numbers, true);
  const Tensor loss = net.loss(batch->ids, batch->labels);
  loss.backward();
  StepGradient result;
  result.loss = loss.item();
  for (const nn::NamedParameter& parameter : net.named_parameters()) {
    result.gradient[parameter.name] = parameter.tensor.grad().to_vector();
  }
  return result;
}

struct Split {
  int ranks = 1;
  std::int64_t micro_batches = 1;
  LabelTaskOptions task = {};
  ShardingOptions sharding = {};
  bool sync_each_batch = true;
  std::vector<double> weights = {};  // of the ranks
};

StepGradient of_split(const Split& split) {
  TrainerOptions options;
  options.batch_size = sequences / split.ranks / split.micro_batches;
  options.gradient_accumulation_steps = split.micro_batches;
  options.sync_each_batch = split.sync_each_batch;
  options.sharding = split.sharding;
  options.rank_weights.given = split.weights;
  return testing::gradient_of_step(split.ranks, options,
                                   [&] { return std::make_unique<LabelTask>(split.task); });
}

std::string describe(const Split& split) {
  return std::string(name_of(split.sharding.strategy)) + ", " + std::to_string(split.ranks) +
         " ranks, " + std::to_string(split.micro_batches) + " micro-batches";
}

void expect_equal(const StepGradient& expected, const Split& split) {
  const StepGradient got = of_split(split);
  EXPECT_NEAR(got.loss, expected.loss, 1e-6 * expected.loss) << describe(split);
  EXPECT_LE(largest_difference(expected, got), 1e-6) << describe(split);
}

TEST(LabelWeights, GiveEverySplitTheGradientOfTheWholeBatch) {
  const StepGradient expected = of_whole_batch();
  for (const int ranks : {1, 2, 4, 8}) {
    for (std::int64_t micro_batches = 1; ranks * micro_batches <= sequences; micro_batches *= 2) {
      expect_equal(expected, {.ranks = ranks, .micro_batches = micro_batches});
    }
  }
}

TEST(LabelWeights, GiveEveryStrategyTheGradientOfTheWholeBatch) {
  const StepGradient expected = of_whole_batch();
  for (const StrategyRow& row : strategy_table) {
    Split split{.ranks = 4, .micro_batches = 2};
    split.sharding.strategy = row.strategy;
    split.sharding.group_size = 2;
    expect_equal(expected, split);
    split.sync_each_batch = false;
    expect_equal(expected, split);
    if (row.shards != ShardGroup::group) continue;
    split.sync_each_batch = true;
    split.sharding.defer_replica_sums = true;
    expect_equal(expected, split);
  }
}

TEST(LabelWeights, GiveRanksWithUnequalPartsTheGradientOfTheWholeBatch) {
  const StepGradient expected = of_whole_batch();
  expect_equal(expected, {.ranks = 2, .weights = {3, 1}});
  expect_equal(expected, {.ranks = 2, .micro_batches = 2, .weights = {1, 3}});
  expect_equal(expected, {.ranks = 4, .weights = {1, 5, 1, 1}});
}

// Without weights the loss is another one: a mean of means.
TEST(LabelWeights, DifferFromBatchesThatCountEqually) {
  const StepGradient expected = of_whole_batch();
  EXPECT_LE(largest_difference(expected, of_split({.task = {.weighs = false}})), 1e-6);
  for (const int ranks : {2, 4}) {
    const StepGradient got = of_split({.ranks = ranks, .task = {.weighs = false}});
    EXPECT_GT(largest_difference(expected, got), 0.05);
  }
}

TEST(LabelWeights, OfAStepWithoutLabelsChangeNothing) {
  const StepGradient got =
      of_split({.ranks = 2, .micro_batches = 2, .task = {.has_labels = false}});
  EXPECT_EQ(got.loss, 0);
  for (const auto& [name, values] : got.gradient) {
    EXPECT_EQ(values, std::vector<double>(values.size())) << name;
  }
}

}  // namespace
}  // namespace tessera
