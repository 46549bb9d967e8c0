// A step on conversations: loss and gradient are those of the sum over all tokens in the loss
// divided by their number, for every split into ranks, micro-batches and packs.
#include "tasks/instructions/sft.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/random.h"
#include "models/registry/registry.h"
#include "support/one_thread.h"
#include "support/step_gradient.h"
#include "tests/tasks/instructions/conversations_testing.h"
#include "tests/tasks/instructions/small_model.h"
#include "trainer/trainer.h"

namespace tessera::tasks {
namespace {

using testing::StepGradient;

constexpr std::int64_t row_length = 32;

// 24 pairs of conversations that fill a row of 32 places exactly, with completions of any length.
std::vector<PromptLengths> pairs_of_lengths() {
  std::vector<PromptLengths> lengths;
  for (int i = 0; i < 24; ++i) {
    const int places = 4 + i % 12;
    const int first = 1 + i * 7 % (places - 1);
    lengths.push_back({places + 1 - first, first});
    const int others = static_cast<int>(row_length) - places;
    const int second = 1 + i * 11 % (others - 2);
    lengths.push_back({others + 1 - second, second});
  }
  return lengths;
}

SftOptions small_options(const std::string& file, bool of_llama, bool packing) {
  SftOptions options;
  options.train = {{{file}, {}}};
  options.tokenizer = make_tokenizer("bytes");
  options.seq_len = row_length;
  options.seed = 1;
  options.model = small_model(of_llama);
  options.packing = packing;
  return options;
}

struct StepSplit {
  int ranks = 1;
  std::int64_t micro_batches = 1;
  bool packing = false;
  bool of_llama = false;
  ShardingOptions sharding = {};
};

// All conversations at once, without a trainer: a row for each.
StepGradient of_whole_batch(const std::string& file, bool of_llama) {
  const testing::OneThread one_thread;
  manual_seed(7);
  const auto model = models::make_language_model(small_model(of_llama));
  const ConversationSamples samples(
      open_conversations({{file}, {}}, ByteTokenizer(), "", LossOn::answers),
      {.seq_len = row_length, .shuffle = false});
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(samples.samples_per_epoch()));
  std::iota(numbers.begin(), numbers.end(), 0);
  const Tensor loss = conversation_loss(*model, *samples.batch(numbers), Device::cpu());
  loss.backward();
  StepGradient result{loss.item(), {}};
  for (const nn::NamedParameter& parameter : model->named_parameters()) {
    result.gradient[parameter.name] = parameter.tensor.grad().to_vector();
  }
  return result;
}

StepGradient of_step(const std::string& file, const StepSplit& split) {
  TrainerOptions options;
  const std::int64_t samples = split.packing ? 24 : 48;
  options.batch_size = samples / split.ranks / split.micro_batches;
  options.gradient_accumulation_steps = split.micro_batches;
  options.sharding = split.sharding;
  return testing::gradient_of_step(split.ranks, options, [&] {
    auto task = make_sft_task(small_options(file, split.of_llama, split.packing));
    EXPECT_EQ(task->samples_per_epoch().front(), samples);
    return task;
  });
}

class SftSplit : public ::testing::Test {
 protected:
  SftSplit() { folder_.write("rows.jsonl", prompt_lines(pairs_of_lengths())); }
  void expect_equal(const StepGradient& expected, const StepSplit& split) const {
    const StepGradient got = of_step(folder_.path("rows.jsonl"), split);
    const std::string what = std::to_string(split.ranks) + " ranks, " +
                             std::to_string(split.micro_batches) + " micro-batches" +
                             (split.packing ? ", packed" : "");
    EXPECT_NEAR(got.loss, expected.loss, 1e-6 * expected.loss) << what;
    EXPECT_LE(largest_difference(expected, got), 1e-6) << what;
  }
  DataFolder folder_;
};

TEST_F(SftSplit, HasTheGradientOfTheWholeBatch) {
  for (const bool of_llama : {false, true}) {
    const StepGradient expected = of_whole_batch(folder_.path("rows.jsonl"), of_llama);
    for (const int ranks : {1, 2, 3}) {
      for (const std::int64_t micro_batches : {1, 2, 4}) {
        for (const bool packing : {false, true}) {
          expect_equal(expected, {ranks, micro_batches, packing, of_llama});
        }
      }
    }
    expect_equal(expected, {1, 48, false, of_llama});  // a conversation at a time
    expect_equal(expected, {3, 8, true, of_llama});    // a row at a time
  }
}

TEST_F(SftSplit, HasItUnderEveryStrategy) {
  const StepGradient expected = of_whole_batch(folder_.path("rows.jsonl"), true);
  for (const StrategyRow& row : strategy_table) {
    StepSplit split{4, 2, true, true};
    split.sharding.strategy = row.strategy;
    split.sharding.group_size = 2;
    expect_equal(expected, split);
  }
}

// The loss of an evaluation is that of the whole set, also packed, on any ranks, with a last batch
// that is not full.
TEST_F(SftSplit, EvaluatesTheLossOfTheWholeSet) {
  const double expected = of_whole_batch(folder_.path("rows.jsonl"), true).loss;
  for (const bool packing : {false, true}) {
    std::vector<double> losses;
    for (const int ranks : {1, 2, 3}) {
      std::mutex mutex;
      launch(ranks, [&](Context& context) {
        const testing::OneThread one_thread;
        manual_seed(7);
        SftOptions options = small_options(folder_.path("rows.jsonl"), true, packing);
        options.valid = options.train.front();
        options.eval_batches = 100;
        TrainerOptions run;
        run.batch_size = 5;
        Trainer trainer(make_sft_task(options), context, run);
        const double loss = trainer.evaluate().numbers.front().second;
        const std::lock_guard lock(mutex);
        losses.push_back(loss);
      });
    }
    EXPECT_NEAR(losses.front(), expected, 1e-6 * expected);
    for (const double loss : losses) EXPECT_EQ(loss, losses.front());
  }
}

}  // namespace
}  // namespace tessera::tasks
