// A step on pairs: loss, rewards and gradient are those of the mean over all pairs, for every split
// into ranks and micro-batches; an adapter's reference is the model under it.
#include "tasks/instructions/dpo.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/autograd.h"
#include "engine/nn/lora.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "models/registry/registry.h"
#include "support/one_thread.h"
#include "support/step_gradient.h"
#include "tests/tasks/instructions/preferences_testing.h"
#include "tests/tasks/instructions/small_model.h"
#include "trainer/trainer.h"

namespace tessera::tasks {
namespace {

using testing::StepGradient;

constexpr std::int64_t pair_seq_len = 32, all_pairs = 24;

// A model of its own on each rank, with other weights than the trained one.
class WholeReference final : public Reference {
 public:
  explicit WholeReference(bool of_llama) {
    manual_seed(11);
    model_ = models::make_language_model(small_model(of_llama));
  }
  Tensor row_losses(const Tensor& ids, const Tensor& targets) override {
    const NoGradGuard no_grad;
    return model_->row_losses(ids, targets);
  }
  [[nodiscard]] CommunicationStatistics communication() const override { return {}; }

 private:
  std::unique_ptr<models::LanguageModel> model_;
};

DpoOptions pair_options(const std::string& file, bool of_llama, PreferenceLoss loss) {
  DpoOptions options;
  options.train = {{{file}, {}}};
  options.tokenizer = make_tokenizer("bytes");
  options.seq_len = pair_seq_len;
  options.seed = 1;
  options.model = small_model(of_llama);
  options.preference = {.beta = 0.3, .loss = loss};
  options.reference = std::make_shared<WholeReference>(of_llama);
  manual_seed(7);
  return options;
}

// All pairs at once, without a task and a trainer.
StepGradient of_all_pairs(const std::string& file, bool of_llama, PreferenceLoss loss) {
  const testing::OneThread one_thread;
  WholeReference reference(of_llama);
  manual_seed(7);
  const auto model = models::make_language_model(small_model(of_llama));
  const PreferenceSamples samples(open_preferences({{file}, {}}, ByteTokenizer(), ""),
                                  {.seq_len = pair_seq_len, .shuffle = false});
  std::vector<std::int64_t> numbers(all_pairs);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto batch = samples.batch(numbers);
  const Shape rows{2 * all_pairs, batch->length};
  const Tensor ids = Tensor::from(batch->inputs, rows);
  const Tensor targets = Tensor::from(batch->targets, rows);
  const Tensor counts = Tensor::from(batch->counts, {2 * all_pairs});
  const auto log_probs = [&](const Tensor& losses) {
    const Tensor all = loss == PreferenceLoss::ipo ? losses : losses * counts;
    return reshape(all * -1.0, {2, all_pairs});
  };
  const Tensor value =
      preference_loss(log_probs(model->row_losses(ids, targets)),
                      log_probs(reference.row_losses(ids, targets)), {.beta = 0.3, .loss = loss});
  value.backward();
  StepGradient result{value.item(), {}};
  for (const nn::NamedParameter& parameter : model->named_parameters()) {
    result.gradient[parameter.name] = parameter.tensor.grad().to_vector();
  }
  return result;
}

StepGradient of_pair_step(const std::string& file, int ranks, std::int64_t micro_batches,
                          bool of_llama, PreferenceLoss loss,
                          const ShardingOptions& sharding = {}) {
  TrainerOptions options;
  options.batch_size = all_pairs / ranks / micro_batches;
  options.gradient_accumulation_steps = micro_batches;
  options.sharding = sharding;
  return testing::gradient_of_step(ranks, options, [&] {
    auto task = make_dpo_task(pair_options(file, of_llama, loss));
    EXPECT_EQ(task->samples_per_epoch().front(), all_pairs);
    return task;
  });
}

class DpoSplit : public ::testing::Test {
 protected:
  DpoSplit() {
    std::vector<PairLengths> lengths;
    for (int i = 0; i < all_pairs; ++i) {
      lengths.push_back({1 + i * 7 % 12, 2 + i * 5 % 13, 2 + i * 11 % 17});
    }
    folder_.write("pairs.jsonl", pair_lines(lengths));
  }
  [[nodiscard]] std::string file() const { return folder_.path("pairs.jsonl"); }
  static void expect_equal(const StepGradient& expected, const StepGradient& got,
                           const std::string& what) {
    // A pair's loss is of a difference of fp32 sums of up to 100 nats, which are rounded to 4e-6
    // and multiplied by beta.
    EXPECT_NEAR(got.loss, expected.loss, 1e-6 * expected.loss) << what;
    EXPECT_LE(largest_difference(expected, got), 3e-6) << what;
  }
  DataFolder folder_;
};

TEST_F(DpoSplit, HasTheGradientOfAllPairs) {
  for (const bool of_llama : {false, true}) {
    const PreferenceLoss loss = of_llama ? PreferenceLoss::ipo : PreferenceLoss::sigmoid;
    const StepGradient expected = of_all_pairs(file(), of_llama, loss);
    for (const int ranks : {1, 2, 3}) {
      for (const std::int64_t micro_batches : {1, 2, 4}) {
        expect_equal(expected, of_pair_step(file(), ranks, micro_batches, of_llama, loss),
                     std::to_string(ranks) + " ranks, " + std::to_string(micro_batches));
      }
    }
    expect_equal(expected, of_pair_step(file(), 1, all_pairs, of_llama, loss), "one at a time");
  }
}

TEST_F(DpoSplit, HasItUnderEveryStrategy) {
  const StepGradient expected = of_all_pairs(file(), false, PreferenceLoss::sigmoid);
  for (const StrategyRow& row : strategy_table) {
    ShardingOptions sharding;
    sharding.strategy = row.strategy;
    sharding.group_size = 2;
    expect_equal(expected, of_pair_step(file(), 4, 2, false, PreferenceLoss::sigmoid, sharding),
                 std::string(row.name));
  }
}

// A mean over pairs, also of an evaluation with a last batch that is not full.
TEST_F(DpoSplit, EvaluatesAllPairsAndLogsTheirRewards) {
  const double expected = of_all_pairs(file(), false, PreferenceLoss::sigmoid).loss;
  std::vector<Evaluation> found;
  std::vector<StepMetrics> steps;
  for (const int ranks : {1, 2, 3}) {
    std::mutex mutex;
    launch(ranks, [&](Context& context) {
      const testing::OneThread one_thread;
      DpoOptions options = pair_options(file(), false, PreferenceLoss::sigmoid);
      options.valid = options.train.front();
      options.eval_batches = 100;
      TrainerOptions run;
      run.batch_size = 5;
      Trainer trainer(make_dpo_task(options), context, run);
      const Evaluation evaluation = trainer.evaluate();
      run.batch_size = all_pairs / ranks;
      manual_seed(7);
      Trainer steps_of(make_dpo_task(options), context, run);
      const StepMetrics step = steps_of.step().value();
      const std::lock_guard lock(mutex);
      found.push_back(evaluation);
      steps.push_back(step);
    });
  }
  EXPECT_EQ(found.front().numbers.front().first, "valid_loss");
  EXPECT_NEAR(found.front().best_by(), expected, 1e-6 * expected);
  const auto& first = steps.front().of_task;
  ASSERT_EQ(first.size(), 4U);
  EXPECT_NEAR(first[3].second, first[0].second - first[1].second, 1e-6);
  EXPECT_GT(first[2].second, 0);
  EXPECT_LT(first[2].second, 1);
  for (const Evaluation& one : found) EXPECT_EQ(one.numbers, found.front().numbers);
  for (const StepMetrics& step : steps) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(step.of_task[i].first, first[i].first);
      EXPECT_NEAR(step.of_task[i].second, first[i].second, 1e-6) << first[i].first;
      EXPECT_NEAR(found.front().numbers[i + 1].second, first[i].second, 1e-6) << first[i].first;
    }
  }
}

TEST(DpoAdapter, TheReferenceIsTheModelWithoutIt) {
  manual_seed(7);
  const auto model = models::make_language_model(small_model(true));
  const Tensor ids = Tensor::from(std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}, {2, 3});
  const std::vector<double> alone = model->row_losses(ids, ids).to_vector();
  freeze(*model);
  add_lora(*model, {.rank = 2, .dropout = 0.5, .target_modules = {"q_proj", "down_proj"}});
  for (const nn::NamedParameter& parameter : model->named_parameters()) {
    if (!parameter.name.ends_with("lora_B.weight")) continue;
    Tensor factor = parameter.tensor;
    factor.copy_from(Tensor::full(factor.shape(), 0.3, float32));
  }
  model->train();
  EXPECT_NE(model->row_losses(ids, ids).to_vector(), alone);
  EXPECT_EQ(losses_without_adapters(*model, ids, ids).to_vector(), alone);
  EXPECT_TRUE(model->is_training());
  EXPECT_NE(model->row_losses(ids, ids).to_vector(), alone);
  EXPECT_THROW(WithoutLora(), std::logic_error);  // a backward would not know
}

}  // namespace
}  // namespace tessera::tasks
