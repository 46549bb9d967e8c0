// Batches of pairs, and the loss of two models on them.
#include "tasks/instructions/dpo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "engine/autograd.h"
#include "engine/data/permutation.h"
#include "engine/device/memory_kind.h"
#include "engine/nn/evaluation_mode.h"
#include "engine/nn/lora.h"
#include "engine/ops.h"
#include "engine/tensor_ops.h"
#include "tasks/batch_order.h"
#include "tasks/instructions/batch_sums.h"
#include "tasks/instructions/conversation_files.h"

namespace tessera::tasks {
namespace {

template <class T>
Tensor placed(const std::vector<T>& values, const Shape& shape, Device device) {
  const MemoryScope kind(MemoryKind::other);
  return Tensor::from(std::span<const T>(values), shape).to(device);
}

// The log-probabilities of a batch's answers and the numbers of their tokens, all [2, pairs].
struct AnswerLogProbs {
  Tensor trained, reference, tokens;

  [[nodiscard]] Tensor loss(const PreferenceOptions& options) const {
    if (options.loss != PreferenceLoss::ipo) return preference_loss(trained, reference, options);
    return preference_loss(trained / tokens, reference / tokens, options);
  }
};

// The reference's forward is the first, so that nothing but its results is kept beside the
// activations of the trained model.
AnswerLogProbs log_probs_of(const ComparedModels& models, const PreferenceBatch& batch,
                            Device device) {
  const Shape rows{2 * batch.samples, batch.length}, answers{2, batch.samples};
  const Tensor ids = placed(batch.inputs, rows, device);
  const Tensor targets = placed(batch.targets, rows, device);
  AnswerLogProbs made;
  const auto log_probs = [&](const Tensor& losses) {
    made.tokens = cast(placed(batch.counts, answers, device), losses.dtype());
    return reshape(losses, answers) * made.tokens * -1.0;
  };
  made.reference = log_probs(models.reference(ids, targets));
  made.trained = log_probs(models.trained(ids, targets));
  return made;
}

std::vector<double> values_of(const PreferenceRewards& rewards) {
  return {rewards.chosen, rewards.rejected, rewards.accuracy, rewards.margin};
}

const std::vector<std::string>& reward_names() {
  static const std::vector<std::string> names = {"rewards_chosen", "rewards_rejected",
                                                 "rewards_accuracy", "rewards_margin"};
  return names;
}

class Dpo final : public LanguageModelTask {
 public:
  explicit Dpo(const DpoOptions& options) : options_(options) {
    if (options_.reads_data) open_data();
    model_ = make_trained_model(options_);
    TESSERA_CHECK(!model_->config().value("output_router_logits", false), ErrorCode::configuration,
                  "{}: train.task: dpo excludes output_router_logits of the config.json of {}, "
                  "whose loss is not one of pairs",
                  options_.source, options_.model_source);
    if (!options_.reads_data) return;
    check_vocabulary(options_.source + ": data.tokenizer", std::string(options_.tokenizer->name()),
                     options_.tokenizer->vocabulary_size(), model_->vocabulary(),
                     options_.pretrained);
  }

  [[nodiscard]] std::vector<std::int64_t> samples_per_epoch() const override {
    std::vector<std::int64_t> samples;
    for (const PreferenceSamples& one : samples_) samples.push_back(one.samples_per_epoch());
    return samples;
  }
  [[nodiscard]] std::unique_ptr<Prepared> prepare(
      std::size_t data_set, std::span<const std::int64_t> samples) const override {
    return samples_[data_set].batch(samples);
  }
  [[nodiscard]] std::unique_ptr<Prepared> blank(std::int64_t samples) const override {
    auto batch = std::make_unique<PreferenceBatch>();
    batch->samples = batch->weight = samples;
    batch->length = options_.seq_len;
    batch->tokens = 2 * samples * options_.seq_len;
    batch->inputs.assign(static_cast<std::size_t>(batch->tokens), 0);
    batch->targets = batch->inputs;
    batch->counts.assign(static_cast<std::size_t>(2 * samples), 1.0F);
    return batch;
  }
  [[nodiscard]] Tensor loss(const Prepared& prepared, const Context& context) override {
    const auto& batch = dynamic_cast<const PreferenceBatch&>(prepared);
    const AnswerLogProbs of = log_probs_of(models(), batch, context.device());
    reference_ = of.reference.to_vector();
    rewards_ = preference_rewards(of.trained.to_vector(), reference_, options_.preference.beta);
    return of.loss(options_.preference);
  }
  [[nodiscard]] std::string after_loss(double value) override {
    const auto is_finite = [](double one) { return std::isfinite(one); };
    if (std::isfinite(value) || std::all_of(reference_.begin(), reference_.end(), is_finite)) {
      return {};
    }
    return "the reference's log-probabilities are not";
  }
  [[nodiscard]] std::vector<std::string> metric_names() const override { return reward_names(); }
  [[nodiscard]] std::vector<double> metrics() const override { return values_of(rewards_); }
  [[nodiscard]] bool weighs_batches() const override { return true; }
  [[nodiscard]] CommunicationStatistics communication() const override {
    return options_.reference ? options_.reference->communication() : CommunicationStatistics{};
  }
  [[nodiscard]] std::string describe_batch(std::int64_t samples) const override {
    return fmt::format("{} of at most 2 x {}", counted(samples, "pair"),
                       counted(options_.seq_len, "token"));
  }
  [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> data_counts() const override {
    PreferenceSamples::Counts all;
    for (const PreferenceSamples& one : samples_) all += one.counts();
    auto counts = all.by_name();
    if (!validation_) return counts;
    for (const auto& [name, count] : validation_->counts().by_name()) {
      counts.emplace_back("valid_" + name, count);
    }
    return counts;
  }

  [[nodiscard]] bool evaluates() const override { return options_.valid.has_value(); }
  [[nodiscard]] Evaluation evaluate(const Context& context, std::int64_t batch_size) override {
    TESSERA_REQUIRE(validation_ != nullptr, "evaluate() without data for it");
    const std::int64_t most = options_.eval_batches * context.world_size() * batch_size;
    const Scores scores = evaluate_preferences(
        models(), *validation_, std::min(most, validation_->samples_per_epoch()), batch_size,
        options_.preference, context, {}, [this] { between_batches(); });
    Evaluation found;
    for (const auto& [name, value] : scores) {
      if (name != "pairs") found.numbers.emplace_back("valid_" + name, value);
    }
    return found;
  }

  void remember_data(Scalars& scalars) const override {
    scalars.set("preferences", fingerprint())
        .set("seq_len", options_.seq_len)
        .set("seed", options_.seed)
        .set("shuffle", options_.shuffle);
  }
  void check_data(const Scalars& scalars, const std::string& folder) const override {
    TESSERA_CHECK(scalars.contains("preferences"), ErrorCode::checkpoint,
                  "{}: the manifest has no position in pairs of answers; it was not written by a "
                  "run of train.task: dpo",
                  folder);
    TESSERA_CHECK(scalars.get<std::uint64_t>("preferences") == fingerprint(), ErrorCode::data,
                  "{}: the pairs are not those that the run in {} was trained on, so its place in "
                  "them is lost; give the old files, columns and chat template, or start anew from "
                  "the weights with model.pretrained",
                  options_.train_place, folder);
    OrderComparison order;
    order.add("model.seq_len", scalars, "seq_len", options_.seq_len);
    order.add("train.seed", scalars, "seed", options_.seed);
    order.add("data.shuffle", scalars, "shuffle", options_.shuffle);
    order.check(folder);
  }

 private:
  [[nodiscard]] ComparedModels models() {
    return {[this](const Tensor& ids, const Tensor& targets) {
              return model_->row_losses(ids, targets);
            },
            [this](const Tensor& ids, const Tensor& targets) {
              return options_.reference ? options_.reference->row_losses(ids, targets)
                                        : losses_without_adapters(*model_, ids, targets);
            }};
  }

  [[nodiscard]] PreferenceSamples open(const TextData& data, bool shuffle,
                                       std::uint64_t seed) const {
    return {open_preferences(data, *options_.tokenizer, options_.tokenizer_folder),
            {.seq_len = options_.seq_len,
             .shuffle = shuffle,
             .seed = seed,
             .padding_id = options_.tokenizer->padding_id()}};
  }

  void open_data() {
    auto seed = static_cast<std::uint64_t>(options_.seed);
    for (const TextData& data : options_.train) {
      samples_.push_back(open(data, options_.shuffle, seed));
      seed = mix(seed, samples_.size());  // each data set has an order of its own
    }
    if (options_.valid) {
      validation_ = std::make_unique<PreferenceSamples>(open(*options_.valid, false, seed));
    }
  }

  [[nodiscard]] std::uint64_t fingerprint() const {
    std::uint64_t all = 0;
    for (const PreferenceSamples& one : samples_) all = mix(all, one.corpus().fingerprint());
    return all;
  }

  DpoOptions options_;
  std::vector<PreferenceSamples> samples_;  // of each data set
  std::unique_ptr<PreferenceSamples> validation_;
  // Results of the last loss().
  std::vector<double> reference_;
  PreferenceRewards rewards_;
};

}  // namespace

std::unique_ptr<ModelTask> make_dpo_task(const DpoOptions& options) {
  return std::make_unique<Dpo>(options);
}

std::shared_ptr<const ConversationCorpus> open_preferences(const TextData& data,
                                                           const Tokenizer& tokenizer,
                                                           const std::string& tokenizer_folder) {
  return open_rows(data, tokenizer, tokenizer_folder, RowLoss::of_preferences);
}

Tensor losses_without_adapters(models::LanguageModel& model, const Tensor& ids,
                               const Tensor& targets) {
  const NoGradGuard no_grad;
  const WithoutLora alone;
  const nn::EvaluationMode evaluating(model);
  return model.row_losses(ids, targets);
}

Scores evaluate_preferences(const ComparedModels& models, const PreferenceSamples& samples,
                            std::int64_t count, std::int64_t batch_size,
                            const PreferenceOptions& options, const Context& context,
                            const std::function<void(const PreferenceBatch&)>& took,
                            const std::function<void()>& between) {
  const NoGradGuard no_grad;
  const std::vector<double> sums = sum_over_batches(
      count, batch_size, context, [&](std::span<const std::int64_t> numbers, bool repeats) {
        if (between) between();
        const auto batch = samples.batch(numbers);
        const AnswerLogProbs of = log_probs_of(models, *batch, context.device());
        std::vector<double> values{of.loss(options).item()};
        for (const double value : values_of(preference_rewards(
                 of.trained.to_vector(), of.reference.to_vector(), options.beta))) {
          values.push_back(value);
        }
        values.push_back(1);  // for the number of pairs
        for (double& value : values) value *= static_cast<double>(batch->samples);
        if (took && !repeats) took(*batch);
        return values;
      });
  const double pairs = sums.back();
  Scores scores = {{"loss", sums.front() / pairs}};
  for (std::size_t i = 0; i < reward_names().size(); ++i) {
    scores.emplace_back(reward_names()[i], sums[i + 1] / pairs);
  }
  scores.emplace_back("pairs", pairs);
  return scores;
}

}  // namespace tessera::tasks
