// Batches of conversations, and a language model's loss on their answers.
#include "tasks/instructions/sft.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "engine/autograd.h"
#include "engine/data/permutation.h"
#include "engine/device/memory_kind.h"
#include "tasks/batch_order.h"
#include "tasks/instructions/batch_sums.h"
#include "tasks/instructions/conversation_files.h"

namespace tessera::tasks {
namespace {

Tensor on_device(const std::vector<std::int32_t>& values, const ConversationBatch& batch,
                 Device device) {
  const MemoryScope kind(MemoryKind::other);
  return Tensor::from(std::span<const std::int32_t>(values), {batch.samples, batch.length})
      .to(device);
}

models::Documents documents_of(const ConversationBatch& batch, Device device,
                               const std::shared_ptr<const ContextParallel>& sequence) {
  models::Documents documents{.ranks = sequence};
  if (batch.starts.empty()) return documents;
  const std::int64_t whole = static_cast<std::int64_t>(batch.starts.size()) / batch.samples;
  std::vector<std::int32_t> positions;
  for (std::int64_t row = 0; row < batch.samples; ++row) {
    for (std::int64_t place = batch.first; place < batch.first + batch.length; ++place) {
      positions.push_back(static_cast<std::int32_t>(place) -
                          batch.starts[static_cast<std::size_t>(row * whole + place)]);
    }
  }
  const MemoryScope kind(MemoryKind::other);
  documents.starts =
      Tensor::from(std::span<const std::int32_t>(batch.starts), {batch.samples, whole}).to(device);
  documents.positions = on_device(positions, batch, device);
  return documents;
}

// The places [first, first + count) of rows of `length`; what is beyond a row's end has `fill`.
std::vector<std::int32_t> columns_of(const std::vector<std::int32_t>& rows, std::int64_t length,
                                     std::int64_t first, std::int64_t count, std::int32_t fill) {
  std::vector<std::int32_t> columns;
  const std::int64_t samples = static_cast<std::int64_t>(rows.size()) / length;
  for (std::int64_t row = 0; row < samples; ++row) {
    for (std::int64_t place = first; place < first + count; ++place) {
      columns.push_back(place < length ? rows[static_cast<std::size_t>(row * length + place)]
                                       : fill);
    }
  }
  return columns;
}

// Leaves this rank's places of a batch, whose rows are filled up to a multiple of the ranks. The
// first rank counts the tokens, which are without padding.
void keep_part(ConversationBatch& batch, const ContextParallel& sequence, std::int32_t padding) {
  constexpr std::int32_t ignored_target = -100;
  const std::int64_t length = (batch.length + sequence.ranks() - 1) / sequence.ranks();
  batch.first = sequence.first_position(length);
  batch.inputs = columns_of(batch.inputs, batch.length, batch.first, length, padding);
  batch.targets = columns_of(batch.targets, batch.length, batch.first, length, ignored_target);
  batch.length = length;
  batch.weight = std::count_if(batch.targets.begin(), batch.targets.end(),
                               [](std::int32_t target) { return target != ignored_target; });
  if (sequence.part() != 0) batch.tokens = 0;
}

class Sft final : public LanguageModelTask {
 public:
  explicit Sft(const SftOptions& options) : options_(options) {
    if (options_.reads_data) open_data();
    if (options_.takes_vocabulary) {
      options_.model["vocab_size"] = options_.tokenizer->vocabulary_size();
    }
    model_ = make_trained_model(options_);
    teaching_ = {options_.teaching, *model_};
    if (!options_.reads_data) return;
    check_vocabulary(options_.source + ": data.tokenizer", std::string(options_.tokenizer->name()),
                     options_.tokenizer->vocabulary_size(), model_->vocabulary(),
                     options_.pretrained);
  }

  [[nodiscard]] std::vector<std::int64_t> samples_per_epoch() const override {
    std::vector<std::int64_t> samples;
    for (const ConversationSamples& one : samples_) samples.push_back(one.samples_per_epoch());
    return samples;
  }
  [[nodiscard]] std::unique_ptr<Prepared> prepare(
      std::size_t data_set, std::span<const std::int64_t> samples) const override {
    std::unique_ptr<ConversationBatch> batch = samples_[data_set].batch(samples);
    if (sequence_) keep_part(*batch, *sequence_, options_.tokenizer->padding_id());
    return batch;
  }
  [[nodiscard]] std::unique_ptr<Prepared> blank(std::int64_t samples) const override {
    auto batch = std::make_unique<ConversationBatch>();
    batch->samples = samples;
    batch->length = options_.seq_len;
    batch->tokens = batch->weight = samples * options_.seq_len;
    batch->inputs.assign(static_cast<std::size_t>(batch->tokens), 0);
    batch->targets = batch->inputs;
    if (options_.packing) batch->starts = batch->inputs;
    if (sequence_) keep_part(*batch, *sequence_, options_.tokenizer->padding_id());
    return batch;
  }
  [[nodiscard]] Tensor loss(const Prepared& prepared, const Context& context) override {
    const auto& batch = dynamic_cast<const ConversationBatch&>(prepared);
    const Device device = context.device();
    if (!teaching_.has_teacher()) return conversation_loss(*model_, batch, device, sequence_);
    return teaching_.loss(on_device(batch.inputs, batch, device),
                          on_device(batch.targets, batch, device),
                          documents_of(batch, device, sequence_));
  }
  // Rows without packing are filled up.
  [[nodiscard]] std::string share_sequences(
      const std::shared_ptr<const ContextParallel>& ranks) override {
    return share(ranks,
                 options_.packing ? std::vector<std::int64_t>{options_.seq_len}
                                  : std::vector<std::int64_t>{},
                 options_.packing);
  }
  [[nodiscard]] std::string after_loss(double value) override {
    return teaching_.after_loss(value);
  }
  [[nodiscard]] CommunicationStatistics communication() const override {
    CommunicationStatistics all = teaching_.communication();
    all += communication_of_parts();
    return all;
  }
  [[nodiscard]] bool weighs_batches() const override { return true; }
  [[nodiscard]] std::int64_t most_places() const override {
    return options_.packing ? 0 : options_.seq_len;
  }
  [[nodiscard]] std::vector<std::int64_t> places(
      std::size_t data_set, std::span<const std::int64_t> samples) const override {
    std::vector<std::int64_t> places;
    for (const std::int64_t sample : samples) {
      places.push_back(samples_[data_set].places_of_sample(sample));
    }
    return places;
  }
  [[nodiscard]] std::string describe_batch(std::int64_t samples) const override {
    if (options_.packing) {
      return fmt::format("{} packed x {}", samples, counted(options_.seq_len, "token"));
    }
    return fmt::format("{} of at most {}", counted(samples, "conversation"),
                       counted(options_.seq_len, "token"));
  }
  [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> data_counts() const override {
    ConversationSamples::Counts all;
    std::int64_t rows = 0;
    for (const ConversationSamples& one : samples_) {
      all += one.counts();
      rows += one.samples_per_epoch();
    }
    auto counts = all.by_name();
    if (options_.packing) {
      counts.emplace_back("packed_rows", rows);
      counts.emplace_back("padding", rows * options_.seq_len - all.places);
    }
    if (!validation_) return counts;
    for (const auto& [name, count] : validation_->counts().by_name()) {
      counts.emplace_back("valid_" + name, count);
    }
    return counts;
  }

  [[nodiscard]] std::vector<std::string> data_notes() const override {
    if (options_.loss_on != LossOn::answers) return {};
    std::vector<std::string> notes;
    const auto add = [&](const char* key, const ConversationSamples& samples) {
      const std::string note = samples.unanswered_note();
      if (!note.empty()) notes.push_back(fmt::format("{}: {}", key, note));
    };
    for (const ConversationSamples& one : samples_) add("data.train", one);
    if (validation_) add("data.valid", *validation_);
    return notes;
  }

  [[nodiscard]] bool evaluates() const override { return options_.valid.has_value(); }
  [[nodiscard]] Evaluation evaluate(const Context& context, std::int64_t batch_size) override {
    TESSERA_REQUIRE(validation_ != nullptr, "evaluate() without data for it");
    teaching_.rest();
    const std::int64_t most = options_.eval_batches * batch_size *
                              (sequence_ ? sequence_->blocks() : context.world_size());
    const Scores scores = evaluate_conversations(
        *model_, *validation_, std::min(most, validation_->samples_per_epoch()), batch_size,
        context, {}, [this] { between_batches(); }, sequence_);
    return {{{"valid_loss", scores.front().second}}, false};
  }

  void remember_data(Scalars& scalars) const override {
    scalars.set("conversations", fingerprint())
        .set("seq_len", options_.seq_len)
        .set("packing", options_.packing)
        .set("seed", options_.seed)
        .set("shuffle", options_.shuffle);
  }
  void check_data(const Scalars& scalars, const std::string& folder) const override {
    TESSERA_CHECK(scalars.contains("conversations"), ErrorCode::checkpoint,
                  "{}: the manifest has no position in conversations; it was not written by a run "
                  "of train.task: sft",
                  folder);
    TESSERA_CHECK(
        scalars.get<std::uint64_t>("conversations") == fingerprint(), ErrorCode::data,
        "{}: the conversations are not those that the run in {} was trained on, so its place in "
        "them is lost; give the old files, columns, chat template and data.loss_on, or start anew "
        "from the weights with model.pretrained",
        options_.train_place, folder);
    OrderComparison order;
    order.add("model.seq_len", scalars, "seq_len", options_.seq_len);
    order.add("data.packing", scalars, "packing", options_.packing);
    order.add("train.seed", scalars, "seed", options_.seed);
    order.add("data.shuffle", scalars, "shuffle", options_.shuffle);
    order.check(folder);
  }

 private:
  [[nodiscard]] ConversationSamples open(const TextData& data, bool shuffle,
                                         std::uint64_t seed) const {
    return {
        open_conversations(data, *options_.tokenizer, options_.tokenizer_folder, options_.loss_on),
        {.seq_len = options_.seq_len,
         .packing = options_.packing,
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
      validation_ = std::make_unique<ConversationSamples>(open(*options_.valid, false, seed));
    }
  }

  [[nodiscard]] std::uint64_t fingerprint() const {
    std::uint64_t all = 0;
    for (const ConversationSamples& one : samples_) all = mix(all, one.corpus().fingerprint());
    return all;
  }

  SftOptions options_;
  Teaching teaching_;
  std::vector<ConversationSamples> samples_;  // of each data set
  std::unique_ptr<ConversationSamples> validation_;
};

}  // namespace

std::unique_ptr<ModelTask> make_sft_task(const SftOptions& options) {
  return std::make_unique<Sft>(options);
}

std::shared_ptr<const ConversationCorpus> open_conversations(const TextData& data,
                                                             const Tokenizer& tokenizer,
                                                             const std::string& tokenizer_folder,
                                                             LossOn loss_on) {
  return open_rows(data, tokenizer, tokenizer_folder,
                   loss_on == LossOn::answers ? RowLoss::of_answers : RowLoss::of_all);
}

Tensor conversation_loss(models::LanguageModel& model, const ConversationBatch& batch,
                         Device device, const std::shared_ptr<const ContextParallel>& sequence) {
  const Tensor ids = on_device(batch.inputs, batch, device);
  const Tensor targets = on_device(batch.targets, batch, device);
  return model.packed_loss(ids, targets, documents_of(batch, device, sequence));
}

Scores evaluate_conversations(models::LanguageModel& model, const ConversationSamples& samples,
                              std::int64_t count, std::int64_t batch_size, const Context& context,
                              const std::function<void(const ConversationBatch&)>& took,
                              const std::function<void()>& between,
                              const std::shared_ptr<const ContextParallel>& sequence) {
  const NoGradGuard no_grad;
  const int sharers = sequence ? sequence->ranks() : 1;
  const std::vector<double> sums = sum_over_batches(
      count, batch_size, context,
      [&](std::span<const std::int64_t> numbers, bool repeats) {
        if (between) between();
        const auto batch = samples.batch(numbers);
        if (sequence) keep_part(*batch, *sequence, samples.padding_id());
        const double value = conversation_loss(model, *batch, context.device(), sequence).item();
        if (took && !repeats) took(*batch);
        const auto weight = static_cast<double>(batch->weight);
        return std::vector<double>{value * weight, weight};
      },
      sharers);
  const double total = sums[0], weight = sums[1];
  const double mean = total / weight;
  return {{"loss", mean}, {"perplexity", std::exp(mean)}, {"tokens", weight}};
}

}  // namespace tessera::tasks
