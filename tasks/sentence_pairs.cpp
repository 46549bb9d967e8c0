// Rows of tables as batches of token sequences, and a sentence encoder's loss on them.
#include "tasks/sentence_pairs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "engine/data/permutation.h"
#include "engine/device/memory_kind.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "tasks/batch_order.h"
#include "tasks/encoding.h"
#include "tasks/evaluators.h"
#include "tasks/sentence_losses.h"
#include "tasks/sentence_table.h"

namespace tessera::tasks {
namespace {

// The texts of a sample are adjacent: sequences 2 i and 2 i + 1 are pair i.
struct SentenceBatch final : Prepared {
  std::size_t data_set = 0;
  std::vector<std::vector<std::int32_t>> sequences;
  std::vector<std::vector<std::int32_t>> of_teacher;  // the same texts, if it computes the targets
  std::vector<float> labels;
  std::vector<float> targets;
};

// The trained module: the encoder under its own names, and SoftmaxLoss's head beside it.
class SentencePairsModel final : public nn::Module {
 public:
  SentencePairsModel(std::unique_ptr<models::SentenceEncoder> encoder, std::int64_t classes)
      : encoder_(std::move(encoder)) {
    register_children_of(*encoder_);
    if (classes == 0) return;
    head_ = register_module("classifier", make_softmax_head(encoder_->dimension(), classes));
  }
  [[nodiscard]] const models::SentenceEncoder& encoder() const { return *encoder_; }
  [[nodiscard]] const nn::Linear& head() const { return head_; }

 private:
  std::unique_ptr<models::SentenceEncoder> encoder_;
  nn::Linear head_;
};

// Rows first, first + every, ... of x.
Tensor every_row(const Tensor& x, std::int64_t first, std::int64_t every) {
  if (every == 1) return x;
  std::vector<std::int32_t> numbers;
  for (std::int64_t row = first; row < x.size(0); row += every) {
    numbers.push_back(static_cast<std::int32_t>(row));
  }
  const DeviceGuard on_host(Device::cpu());
  const auto count = static_cast<std::int64_t>(numbers.size());
  return embedding(Tensor::from(numbers, {count}).to(x.device()), x);
}

template <class T>
Tensor on_device(const std::vector<T>& values, const Shape& shape, Device device) {
  const MemoryScope kind(MemoryKind::other);
  const DeviceGuard on_host(Device::cpu());
  return Tensor::from(values, shape).to(device);
}

class SentencePairsTask final : public ModelTask {
 public:
  explicit SentencePairsTask(const SentencePairsOptions& options) : options_(options) {
    if (options_.reads_data) open_data();
    std::int64_t classes = 0;
    for (const SentenceData& data : options_.train) {
      if (data.loss != SentenceLoss::softmax) continue;
      TESSERA_CHECK(classes == 0 || classes == data.classes, ErrorCode::configuration,
                    "{}: one data set has {} classes and another {}; SoftmaxLoss has one head",
                    options_.train_place, classes, data.classes);
      classes = data.classes;
    }
    {
      const DeviceGuard deferred(Device::meta());  // each rank draws its own shard only
      model_ = std::make_unique<SentencePairsModel>(options_.make_encoder(), classes);
    }
    check_model(classes);
    check_teacher();
    if (!options_.teacher) return;
    states_ = {options_.teacher_states, *model_, options_.teacher->module(), options_.states_place};
  }

  [[nodiscard]] nn::Module& module() override { return *model_; }
  [[nodiscard]] const models::Model& model() const override { return encoder(); }
  [[nodiscard]] std::map<std::string, std::string> files(DType weights) const override {
    std::map<std::string, std::string> files = encoder().files();
    files["config.json"] = encoder().config(weights).dump(2) + "\n";
    return files;
  }
  [[nodiscard]] std::set<std::string> tensor_folders() const override {
    return encoder().tensor_folders();
  }
  void load_weights(const std::string& folder,
                    std::vector<checkpoint::LogicalTensor>& tensors) const override {
    // The folder does not contain the head, which keeps its initial values.
    std::vector<checkpoint::LogicalTensor> encoders;
    for (checkpoint::LogicalTensor& tensor : tensors) {
      if (!tensor.name.starts_with(head_prefix)) encoders.push_back(tensor);
    }
    models::load_sentence_encoder(folder, encoder(), encoders);
  }

  [[nodiscard]] std::vector<std::int64_t> samples_per_epoch() const override {
    std::vector<std::int64_t> samples;
    for (const auto& table : train_) samples.push_back(table->rows());
    return samples;
  }

  [[nodiscard]] std::unique_ptr<Prepared> prepare(
      std::size_t data_set, std::span<const std::int64_t> samples) const override {
    const SentenceTable& table = *train_[data_set];
    auto batch = std::make_unique<SentenceBatch>();
    batch->data_set = data_set;
    batch->samples = static_cast<std::int64_t>(samples.size());
    const bool taught = is_taught(table.data());
    const bool computes_taught = needs_teacher(table.data());
    for (const std::int64_t row : table.rows_of(samples)) {
      const SentenceRow read = table.read(row);
      for (const std::string& text : read.texts) {
        batch->sequences.push_back(tokens_.sequence(text));
        batch->tokens += static_cast<std::int64_t>(batch->sequences.back().size());
        if (computes_taught) batch->of_teacher.push_back(options_.teacher->tokens().sequence(text));
      }
      batch->labels.push_back(static_cast<float>(read.label));
      if (table.data().loss == SentenceLoss::mse && !taught) {
        TESSERA_CHECK(static_cast<std::int64_t>(read.target.size()) == encoder().dimension(),
                      ErrorCode::data, "{}: an embedding of {} numbers; the model's have {}",
                      table.place(row), read.target.size(), encoder().dimension());
        batch->targets.insert(batch->targets.end(), read.target.begin(), read.target.end());
      }
    }
    return batch;
  }

  [[nodiscard]] std::unique_ptr<Prepared> blank(std::int64_t samples) const override {
    auto batch = std::make_unique<SentenceBatch>();
    // As many texts as any data set has, and the teacher's forward if any has it. A row of mse may
    // then have several texts, which its loss takes as several rows.
    std::size_t texts = 0;
    for (std::size_t i = 0; i < options_.train.size(); ++i) {
      const SentenceData& data = options_.train[i];
      const std::size_t here = texts_in_row(data);
      const bool chosen = needs_teacher(options_.train[batch->data_set]);
      if (needs_teacher(data) == chosen ? here > texts : needs_teacher(data)) batch->data_set = i;
      texts = std::max(texts, here);
    }
    const SentenceData& data = options_.train[batch->data_set];
    batch->samples = samples;
    const auto count = static_cast<std::size_t>(samples) * texts;
    const auto blanks = [&](std::int64_t length) {
      return std::vector(count, std::vector<std::int32_t>(static_cast<std::size_t>(length), 0));
    };
    batch->sequences = blanks(length_);
    if (needs_teacher(data)) batch->of_teacher = blanks(options_.teacher->tokens().max_length);
    batch->tokens = static_cast<std::int64_t>(count) * length_;
    batch->labels.assign(static_cast<std::size_t>(samples), 0.0f);
    if (data.loss == SentenceLoss::mse && !is_taught(data)) {
      batch->targets.assign(count * static_cast<std::size_t>(encoder().dimension()), 0);
    }
    return batch;
  }

  [[nodiscard]] Tensor loss(const Prepared& prepared, const Context& context) override {
    const auto& batch = dynamic_cast<const SentenceBatch&>(prepared);
    const Device device = context.device();
    Tensor taught = states_.of_teacher([&] { return embeddings_of_teacher(batch, device); });
    const Tensor embeddings = states_.of_student(
        [&] { return encoder().forward(tokens_of(batch.sequences, *options_.tokenizer, device)); });
    if (!is_taught(options_.train[batch.data_set])) taught = Tensor();
    taught_ = taught;
    return states_.add_to(loss_of_embeddings(batch, embeddings, taught, context), {});
  }

  [[nodiscard]] std::string after_loss(double value) override {
    const Tensor taught = std::exchange(taught_, {});
    return states_.fault_of_teacher(value, options_.teacher_folder, "the embeddings", taught);
  }

  [[nodiscard]] std::string describe_batch(std::int64_t samples) const override {
    return fmt::format("{} of at most {}", counted(samples, "pair"), counted(length_, "token"));
  }

  [[nodiscard]] std::string needs_equal_batches() const override {
    if (!options_.teacher_states.empty()) {
      return "train.teacher_states compares the padding of a rank's texts as well";
    }
    const auto ranks_texts = [](const SentenceData& data) {
      return data.loss == SentenceLoss::multiple_negatives_ranking;
    };
    if (std::none_of(options_.train.begin(), options_.train.end(), ranks_texts)) return {};
    return "multiple_negatives_ranking compares the texts of all ranks, equally many of each";
  }

  [[nodiscard]] CommunicationStatistics communication() const override {
    return options_.teacher ? options_.teacher->communication() : CommunicationStatistics{};
  }

  [[nodiscard]] bool evaluates() const override { return options_.valid.has_value(); }
  [[nodiscard]] Evaluation evaluate(const Context& context, std::int64_t batch_size) override;

  void remember_data(Scalars& scalars) const override {
    scalars.set("sentences", fingerprint())
        .set("seed", options_.seed)
        .set("shuffle", options_.shuffle)
        .set("group_by_length", options_.group_by_length);
  }

  void check_data(const Scalars& scalars, const std::string& folder) const override {
    TESSERA_CHECK(scalars.contains("sentences"), ErrorCode::checkpoint,
                  "{}: the manifest has no position in sentences; it was not written by a run of "
                  "train.task: sentence_pairs",
                  folder);
    TESSERA_CHECK(scalars.get<std::uint64_t>("sentences") == fingerprint(), ErrorCode::data,
                  "{}: the data sets are not those that the run in {} was trained on, so its place "
                  "in them is lost; give the old files, columns and losses, or start anew from the "
                  "weights with model.pretrained",
                  options_.train_place, folder);
    OrderComparison order;
    order.add("train.seed", scalars, "seed", options_.seed);
    order.add("data.shuffle", scalars, "shuffle", options_.shuffle);
    order.add("data.group_by_length", scalars, "group_by_length", options_.group_by_length);
    order.check(folder);
  }

 private:
  static constexpr std::string_view head_prefix = "classifier.";

  void open_data() {
    auto seed = static_cast<std::uint64_t>(options_.seed);
    for (const SentenceData& data : options_.train) {
      train_.push_back(std::make_unique<SentenceTable>(
          data, SentenceOrder{options_.shuffle, options_.group_by_length, seed}));
      seed = mix(seed, train_.size());  // each data set has an order of its own
    }
    if (options_.valid) valid_ = std::make_unique<SentenceTable>(*options_.valid);
  }

  void check_model(std::int64_t classes) {
    const models::SentenceEncoder& model = encoder();
    TESSERA_CHECK(model.vocabulary() >= options_.tokenizer->vocabulary_size(),
                  ErrorCode::configuration,
                  "{}: a vocabulary of {} is too small for the {} tokens of data.tokenizer: {}",
                  options_.source, model.vocabulary(), options_.tokenizer->vocabulary_size(),
                  options_.tokenizer->name());
    if (evaluates_encoded()) model.check_prompt(model.prompt(), options_.source);
    length_ = options_.seq_len.value_or(model.max_seq_length());
    tokens_ = {options_.tokenizer, length_, model.do_lower_case()};
    TESSERA_CHECK(length_ <= model.positions(), ErrorCode::configuration,
                  "{}: model.seq_len {} is more than the {} positions of the model",
                  options_.seq_len_place, length_, model.positions());
    TESSERA_CHECK(!options_.valid || options_.valid->evaluator != SentenceEvaluator::accuracy ||
                      (classes > 0 && classes == options_.valid->classes),
                  ErrorCode::configuration,
                  "{}: the evaluator accuracy uses SoftmaxLoss's head, so a data set of data.train "
                  "needs the loss softmax with as many classes",
                  options_.source);
  }

  // The classifier of the evaluator accuracy reads embeddings as in training instead.
  [[nodiscard]] bool evaluates_encoded() const {
    return options_.valid && options_.valid->evaluator != SentenceEvaluator::accuracy;
  }

  // A text is read by both models, each with its own tokenizer. Only the widths must fit.
  void check_teacher() const {
    if (!options_.teacher) return;
    const auto check = [&](bool holds, const std::string& text) {
      TESSERA_CHECK(holds, ErrorCode::configuration, "{}: train.teacher: {}",
                    options_.teacher_place, text);
    };
    const auto& sets = options_.train;
    check(!options_.teacher_states.empty() || std::any_of(sets.begin(), sets.end(), is_taught),
          "no data set of data.train learns from it; give one the loss mse or margin_mse, and "
          "columns with its texts alone");
    const std::int64_t taught = options_.teacher->dimension(), own = encoder().dimension();
    const bool copies = std::any_of(sets.begin(), sets.end(), [](const SentenceData& data) {
      return is_taught(data) && data.loss == SentenceLoss::mse;
    });
    check(!copies || taught == own,
          fmt::format("its embeddings have {} numbers and the trained model's {}, and the loss mse "
                      "compares them one by one; use margin_mse, or add a Dense module from {} to "
                      "{} to the trained model's folder",
                      taught, own, own, taught));
    const TextTokens& theirs = options_.teacher->tokens();
    check(options_.teacher_states.empty() ||
              (theirs.max_length == tokens_.max_length && theirs.lower_case == tokens_.lower_case),
          fmt::format("it reads texts of up to {} and the trained model of up to {}, or one of "
                      "them lowercases texts; train.teacher_states compares the same tokens, so "
                      "set model.seq_len: {}",
                      counted(theirs.max_length, "token"), tokens_.max_length, theirs.max_length));
  }

  [[nodiscard]] const models::SentenceEncoder& encoder() const { return model_->encoder(); }

  // Whether the teacher reads the texts of a data set.
  [[nodiscard]] bool needs_teacher(const SentenceData& data) const {
    return is_taught(data) || !options_.teacher_states.empty();
  }

  // Undefined if the teacher does not read the batch.
  [[nodiscard]] Tensor embeddings_of_teacher(const SentenceBatch& batch, Device device) const {
    if (batch.of_teacher.empty()) return {};
    return options_.teacher->embeddings(
        tokens_of(batch.of_teacher, *options_.teacher->tokens().tokenizer, device));
  }

  // `taught`: the teacher's embeddings, or undefined if the batch has its targets.
  [[nodiscard]] Tensor loss_of_embeddings(const SentenceBatch& batch, const Tensor& embeddings,
                                          const Tensor& taught, const Context& context) const {
    const Device device = context.device();
    const SentenceData& data = options_.train[batch.data_set];
    const std::int64_t samples = batch.samples;
    switch (data.loss) {
      case SentenceLoss::mse:
        return tasks::mse_loss(
            embeddings,
            taught.defined() ? taught : on_device(batch.targets, embeddings.shape(), device));
      case SentenceLoss::margin_mse: {
        const auto part = [](const Tensor& x, std::int64_t text) { return every_row(x, text, 3); };
        const Tensor margins = taught.defined()
                                   ? dot_margins(part(taught, 0), part(taught, 1), part(taught, 2))
                                   : on_device(batch.labels, {samples}, device);
        return margin_mse_loss(part(embeddings, 0), part(embeddings, 1), part(embeddings, 2),
                               margins);
      }
      default:
        return loss_of_pairs(batch, every_row(embeddings, 0, 2), every_row(embeddings, 1, 2),
                             context);
    }
  }

  // u and v: the embeddings of the first and second texts.
  [[nodiscard]] Tensor loss_of_pairs(const SentenceBatch& batch, const Tensor& u, const Tensor& v,
                                     const Context& context) const {
    const SentenceData& data = options_.train[batch.data_set];
    const Device device = context.device();
    switch (data.loss) {
      case SentenceLoss::cosine_similarity:
        return cosine_similarity_loss(u, v, on_device(batch.labels, {batch.samples}, device));
      case SentenceLoss::softmax: {
        const std::vector<std::int32_t> classes(batch.labels.begin(), batch.labels.end());
        return softmax_loss(u, v, on_device(classes, {batch.samples}, device), model_->head());
      }
      case SentenceLoss::multiple_negatives_ranking:
        return multiple_negatives_ranking_loss(u, v, context, data.scale);
      default:
        misuse("a data set without a loss");
    }
  }

  [[nodiscard]] static models::TokenBatch tokens_of(
      const std::vector<std::vector<std::int32_t>>& sequences, const Tokenizer& tokenizer,
      Device device) {
    const MemoryScope kind(MemoryKind::other);
    return make_token_batch(sequences, tokenizer.padding_id(), device);
  }

  [[nodiscard]] std::uint64_t fingerprint() const {
    std::uint64_t all = 0;
    for (const auto& table : train_) all = mix(all, table->fingerprint());
    return all;
  }

  SentencePairsOptions options_;
  std::vector<std::unique_ptr<SentenceTable>> train_;
  std::unique_ptr<SentenceTable> valid_;
  std::unique_ptr<SentencePairsModel> model_;
  std::int64_t length_ = 0;  // tokens of a text, at most
  TextTokens tokens_;
  TeacherStates states_;
  Tensor taught_;  // the teacher's embeddings, until after_loss()
};

Evaluation SentencePairsTask::evaluate(const Context& context, std::int64_t batch_size) {
  TESSERA_REQUIRE(valid_ != nullptr, "evaluate() without data for it");
  states_.rest();
  EvaluationOptions how{tokens_, batch_size};
  const bool encodes = evaluates_encoded();
  if (encodes) how.tokens.prompt = encoder().prompt();
  const Encode encode = [&](const models::TokenBatch& tokens) {
    between_batches();
    return encodes ? encoder().embeddings(tokens) : encoder().forward(tokens);
  };
  if (options_.valid->evaluator == SentenceEvaluator::triplet) {
    return {evaluate_triplets(read_triplets(*valid_), encode, how, context), true};
  }
  const SentencePairs pairs = read_pairs(*valid_);
  if (options_.valid->evaluator == SentenceEvaluator::similarity) {
    return {evaluate_similarity(pairs, encode, how, context), true};
  }
  const Classify classify = [&](const Tensor& u, const Tensor& v) {
    return softmax_logits(u, v, model_->head());
  };
  return {evaluate_classification(pairs, encode, classify, how, context), true};
}

}  // namespace

std::unique_ptr<ModelTask> make_sentence_pairs_task(const SentencePairsOptions& options) {
  return std::make_unique<SentencePairsTask>(options);
}

}  // namespace tessera::tasks
