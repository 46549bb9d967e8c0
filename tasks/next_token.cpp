// Windows of a corpus, and a language model's loss on them.
#include "tasks/next_token.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "engine/autograd.h"
#include "engine/data/permutation.h"
#include "engine/data/samples.h"
#include "engine/data/token_shards.h"
#include "engine/device/memory_kind.h"
#include "models/registry/registry.h"
#include "tasks/batch_order.h"
#include "tasks/columnar/table_corpus.h"
#include "tasks/columnar/table_files.h"

namespace tessera::tasks {
namespace {

struct Windows final : Prepared {
  Batch batch;
};

// This rank's part of the rows.
Tensor ids_of(const std::vector<std::int32_t>& ids, std::int64_t row_length,
              const ContextParallel* sequence, Device device) {
  const MemoryScope kind(MemoryKind::other);
  const std::int64_t rows = static_cast<std::int64_t>(ids.size()) / row_length;
  if (!sequence) {
    return Tensor::from(std::span<const std::int32_t>(ids), {rows, row_length}).to(device);
  }
  const std::int64_t length = row_length / sequence->ranks();
  std::vector<std::int32_t> part;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto first = ids.begin() + row * row_length + sequence->first_position(length);
    part.insert(part.end(), first, first + length);
  }
  return Tensor::from(std::span<const std::int32_t>(part), {rows, length}).to(device);
}

}  // namespace

void check_no_format(const TextData& data, const std::vector<TableFile>& tables) {
  TESSERA_CHECK(!data.json_lines, ErrorCode::configuration,
                "data file {} is Parquet, Arrow or tar; leave format out", tables.front().path);
}

namespace {

using Corpora = std::vector<std::shared_ptr<const Corpus>>;

Corpora open_corpora(const TextData& data, const Tokenizer& tokenizer, const std::string& folder) {
  const std::vector<std::string> names = expand_files(data.files);
  if (const auto shards = find_token_shards(names); !shards.empty()) {
    TESSERA_CHECK(!data.json_lines, ErrorCode::configuration,
                  "data file {} holds tokens; leave format out", shards.front().string());
    TESSERA_CHECK(data.columns.empty(), ErrorCode::configuration,
                  "data file {} holds tokens, so it has no column {}", shards.front().string(),
                  data.columns.front());
    return {std::make_shared<Corpus>(shards, tokenizer)};
  }
  if (auto tables = find_table_files(data.files)) {
    check_no_format(data, *tables);
    return {open_table_corpus({std::move(*tables), data.columns, folder}, tokenizer)};
  }
  if (data.json_lines) {
    return {open_table_corpus({json_lines(names), data.columns, folder}, tokenizer)};
  }
  if (auto lines = find_json_lines(names); lines && !data.columns.empty()) {
    return {open_table_corpus({std::move(*lines), data.columns, folder}, tokenizer)};
  }
  Corpora corpora;
  for (const std::string& path : names) {
    TESSERA_CHECK(data.columns.empty(), ErrorCode::configuration,
                  "data file {} is neither Parquet nor Arrow, tar or JSON lines (.jsonl, or with "
                  "another name and format: jsonl), so it has no column {}",
                  path, data.columns.front());
    corpora.push_back(std::make_shared<Corpus>(path, tokenizer));
  }
  return corpora;
}

std::string names_of(const std::vector<TextData>& sets) {
  std::vector<std::string> names;
  for (const TextData& set : sets) names.insert(names.end(), set.files.begin(), set.files.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

// Ids of two tokenizers are not texts of one language. A file that does not record its tokenizer
// (fingerprint 0) goes with all others. `given`: the run's tokenizer if its settings name one.
void check_one_tokenizer(const std::vector<const Corpus*>& corpora, const Tokenizer* given) {
  const Corpus* first = nullptr;
  for (const Corpus* corpus : corpora) {
    if (corpus->tokenizer_fingerprint() == 0) continue;
    TESSERA_CHECK(given == nullptr || given->fingerprint() == 0 ||
                      corpus->tokenizer_fingerprint() == given->fingerprint(),
                  ErrorCode::configuration,
                  "data file {} holds tokens of tokenizer {}, not of {}; give the text, or leave "
                  "data.tokenizer out",
                  corpus->path().string(), corpus->tokenizer_name(), given->name());
    if (first == nullptr) first = corpus;
    TESSERA_CHECK(corpus->tokenizer_fingerprint() == first->tokenizer_fingerprint(),
                  ErrorCode::configuration,
                  "data file {} holds tokens of tokenizer {}, and {} of {}; write them with one "
                  "tokenizer, or give the texts and data.tokenizer",
                  corpus->path().string(), corpus->tokenizer_name(), first->path().string(),
                  first->tokenizer_name());
  }
}

class NextToken final : public LanguageModelTask {
 public:
  explicit NextToken(const NextTokenOptions& options)
      : options_(options), row_length_(options.seq_len) {
    if (options_.reads_data) open_data();
    if (options_.takes_vocabulary) options_.model["vocab_size"] = vocabulary_of_data();
    model_ = make_trained_model(options_);
    for (const Samples& samples : samples_) {
      samples.corpus().require_vocabulary(model_->vocabulary(), options_.pretrained);
    }
    if (validation_) {
      validation_->corpus().require_vocabulary(model_->vocabulary(), options_.pretrained);
    }
    teaching_ = {options_.teaching, *model_};
  }

  [[nodiscard]] std::vector<std::int64_t> samples_per_epoch() const override {
    std::vector<std::int64_t> samples;
    for (const Samples& one : samples_) samples.push_back(one.samples_per_epoch());
    return samples;
  }

  [[nodiscard]] std::unique_ptr<Prepared> prepare(
      std::size_t data_set, std::span<const std::int64_t> samples) const override {
    auto windows = std::make_unique<Windows>();
    samples_[data_set].fill(samples, windows->batch);
    count(*windows);
    return windows;
  }

  [[nodiscard]] std::unique_ptr<Prepared> blank(std::int64_t samples) const override {
    auto windows = std::make_unique<Windows>();
    Batch& batch = windows->batch;
    batch.count = samples;
    batch.seq_len = options_.seq_len;
    batch.inputs.assign(static_cast<std::size_t>(samples * options_.seq_len), 0);
    batch.targets = batch.inputs;
    count(*windows);
    return windows;
  }

  [[nodiscard]] bool begin_step(std::int64_t step) override {
    const std::int64_t length = options_.seq_len_ramp.at(step, options_.seq_len);
    return std::exchange(row_length_, length) != length;
  }

  [[nodiscard]] Tensor loss(const Prepared& prepared, const Context& context) override {
    const Batch& batch = dynamic_cast<const Windows&>(prepared).batch;
    const Device device = context.device();
    const Tensor inputs = ids_of(batch.inputs, row_length_, sequence_.get(), device);
    const Tensor targets = ids_of(batch.targets, row_length_, sequence_.get(), device);
    const models::Documents rows{.ranks = sequence_};
    return teaching_.has_teacher() ? teaching_.loss(inputs, targets, rows)
                                   : model_->packed_loss(inputs, targets, rows);
  }

  [[nodiscard]] std::string share_sequences(
      const std::shared_ptr<const ContextParallel>& ranks) override {
    std::vector<std::int64_t> lengths{options_.seq_len};
    for (const auto& [step, length] : options_.seq_len_ramp.changes) lengths.push_back(length);
    return share(ranks, lengths, false);
  }

  [[nodiscard]] std::string after_loss(double value) override {
    return teaching_.after_loss(value);
  }

  [[nodiscard]] std::string describe_batch(std::int64_t samples) const override {
    return fmt::format("{} x {}", samples, counted(options_.seq_len, "token"));
  }

  [[nodiscard]] CommunicationStatistics communication() const override {
    CommunicationStatistics all = teaching_.communication();
    all += communication_of_parts();
    return all;
  }

  [[nodiscard]] bool evaluates() const override { return validation_ != nullptr; }

  [[nodiscard]] Evaluation evaluate(const Context& context, std::int64_t batch_size) override {
    TESSERA_REQUIRE(validation_ != nullptr, "evaluate() without data for it");
    teaching_.rest();
    double total = 0;
    for (std::int64_t i = 0; i < options_.eval_batches; ++i) {
      between_batches();
      const std::int64_t first =
          first_sample_of(i, sequence_ ? sequence_->blocks() : context.world_size(),
                          sequence_ ? sequence_->block() : context.rank(), batch_size);
      const Batch batch = validation_->batch(first, batch_size);
      const auto rows = [&](const std::vector<std::int32_t>& ids) {
        return ids_of(ids, options_.seq_len, sequence_.get(), context.device());
      };
      total +=
          model_->packed_loss(rows(batch.inputs), rows(batch.targets), {.ranks = sequence_}).item();
    }
    return {{{"valid_loss", context.mean(total / static_cast<double>(options_.eval_batches))}},
            false};
  }

  void remember_data(Scalars& scalars) const override {
    scalars.set("corpus", fingerprint())
        .set("seq_len", options_.seq_len)
        .set("seed", options_.seed)
        .set("shuffle", options_.shuffle);
  }

  void check_data(const Scalars& scalars, const std::string& folder) const override {
    TESSERA_CHECK(scalars.contains("corpus"), ErrorCode::checkpoint,
                  "{}: the manifest has no training position; it was not written by tessera train",
                  folder);
    TESSERA_CHECK(
        scalars.get<std::uint64_t>("corpus") == fingerprint(), ErrorCode::data,
        "{}: {} is not the text that the run in {} was trained on, so its place in it is lost; "
        "give the old file, or start anew from the weights with model.pretrained",
        options_.train_place, names_of(options_.train), folder);
    OrderComparison order;
    order.add("model.seq_len", scalars, "seq_len", options_.seq_len);
    order.add("train.seed", scalars, "seed", options_.seed);
    order.add("data.shuffle", scalars, "shuffle", options_.shuffle);
    order.check(folder);
  }

 private:
  void open_data() {
    const auto seed = static_cast<std::uint64_t>(options_.seed);
    for (const TextData& data : options_.train) {
      for (auto& corpus : open_corpora(data, *options_.tokenizer, options_.tokenizer_folder)) {
        samples_.emplace_back(std::move(corpus),
                              SampleOptions{options_.seq_len, options_.shuffle, seed});
      }
    }
    open_validation(seed);
    std::vector<const Corpus*> corpora;
    for (const Samples& samples : samples_) corpora.push_back(&samples.corpus());
    if (validation_) corpora.push_back(&validation_->corpus());
    check_one_tokenizer(corpora, options_.tokenizer_is_given ? options_.tokenizer.get() : nullptr);
  }

  void open_validation(std::uint64_t seed) {
    if (!options_.valid) return;
    auto valid = open_corpora(*options_.valid, *options_.tokenizer, options_.tokenizer_folder);
    TESSERA_CHECK(valid.size() == 1, ErrorCode::configuration,
                  "{}: data.valid is {} files; one is evaluated on", options_.valid_place,
                  valid.size());
    validation_ = std::make_unique<Samples>(std::move(valid.front()),
                                            SampleOptions{options_.seq_len, false, seed});
  }

  // The vocabulary of the ids in the files if they state it; otherwise the tokenizer's.
  [[nodiscard]] std::int64_t vocabulary_of_data() const {
    std::int64_t vocabulary = 0;
    for (const Samples& samples : samples_) {
      vocabulary = std::max(vocabulary, samples.corpus().vocabulary_size());
    }
    return vocabulary > 0 ? vocabulary : options_.tokenizer->vocabulary_size();
  }

  // For one file, the file's own fingerprint, as saved by earlier runs.
  [[nodiscard]] std::uint64_t fingerprint() const {
    std::uint64_t all = samples_.front().corpus().fingerprint();
    for (std::size_t i = 1; i < samples_.size(); ++i) {
      all = mix(all, samples_[i].corpus().fingerprint());
    }
    return all;
  }

  void count(Windows& windows) const {
    windows.samples = windows.batch.count;
    windows.tokens =
        windows.batch.count * windows.batch.seq_len / (sequence_ ? sequence_->ranks() : 1);
  }

  NextTokenOptions options_;
  std::vector<Samples> samples_;  // of each data set
  std::unique_ptr<Samples> validation_;
  Teaching teaching_;
  std::int64_t row_length_ = 0;  // of the present step
};

}  // namespace

std::string LanguageModelTask::share(const std::shared_ptr<const ContextParallel>& ranks,
                                     const std::vector<std::int64_t>& lengths, bool packs) {
  if (model_->config().value("output_router_logits", false)) {
    return "output_router_logits adds the load-balancing loss, which is that of each rank's tokens";
  }
  for (const std::int64_t length : lengths) {
    if (length % ranks->ranks() == 0) continue;
    return fmt::format("sequences of {} tokens do not divide over {} ranks", length,
                       ranks->ranks());
  }
  const nlohmann::json config = model_->config();
  const auto heads =
      config.at(config.contains("n_head") ? "n_head" : "num_attention_heads").get<std::int64_t>();
  if (packs && heads % ranks->ranks() != 0) {
    return fmt::format("packed rows need a number of ranks that divides the {} heads of the model",
                       heads);
  }
  sequence_ = ranks;
  return {};
}

double LanguageModelTask::row_cost(std::int64_t places) const {
  const nlohmann::json config = model_->config();
  const double width = config.contains("n_embd") ? config.at("n_embd").get<double>()
                                                 : config.at("hidden_size").get<double>();
  const auto length = static_cast<double>(places);
  return length * (1 + length / (6 * width));
}

std::unique_ptr<models::LanguageModel> make_trained_model(const LanguageModelOptions& options) {
  std::unique_ptr<models::LanguageModel> model;
  {
    const DeviceGuard deferred(Device::meta());  // each rank draws its own shard only
    model = models::make_language_model(options.model, options.model_source);
    if (options.adapt) options.adapt(*model);
  }
  TESSERA_CHECK(
      model->vocabulary() >= options.tokenizer->vocabulary_size(), ErrorCode::configuration,
      "{}: a vocabulary of {} is too small for the {} tokens of data.tokenizer: {}", options.source,
      model->vocabulary(), options.tokenizer->vocabulary_size(), options.tokenizer->name());
  TESSERA_CHECK(options.seq_len <= model->positions(), ErrorCode::configuration,
                "{}: model.seq_len {} is more than the {} positions of the model",
                options.seq_len_place, options.seq_len, model->positions());
  return model;
}

std::unique_ptr<ModelTask> make_next_token_task(const NextTokenOptions& options) {
  return std::make_unique<NextToken>(options);
}

}  // namespace tessera::tasks
