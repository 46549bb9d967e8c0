// `tessera evaluate`: scores a model on a data set, on one rank or many.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/counted.h"
#include "base/error.h"
#include "base/text/nearest.h"
#include "base/text/print.h"
#include "cli/commands/encoders/encoder_folder.h"
#include "cli/commands/encoders/evaluation_progress.h"
#include "cli/run_notes.h"
#include "cli/subcommands.h"
#include "engine/data/corpus.h"
#include "engine/nn/layers.h"
#include "engine/storage/output_file.h"
#include "logs/output_files.h"
#include "planner/sweep.h"
#include "tasks/evaluators.h"
#include "tasks/instructions/dpo.h"
#include "tasks/instructions/sft.h"
#include "tasks/sentence_losses.h"
#include "tasks/sentence_table.h"
#include "training/device.h"

namespace tessera::cli {
namespace {

// Two texts and a label per row; three texts for triplets.
constexpr std::size_t pair_columns = 3;
constexpr const char* evaluation_format = "tessera-evaluation";

const std::vector<std::string>& task_names() {
  static const std::vector<std::string> names = {"similarity", "accuracy", "triplet",
                                                 "perplexity", "sft",      "dpo"};
  return names;
}

struct EvaluateCommand {
  std::string folder;
  std::string base;
  std::vector<std::string> data;
  std::vector<std::string> columns;
  std::string task = "similarity";
  std::vector<std::string> labels;
  double label_scale = 1;
  std::string json;
  std::int64_t batch_size = 32;
  std::int64_t seq_len = 0;
  std::string reference;
  std::string reference_base;
  double beta = tasks::PreferenceOptions{}.beta;
  std::string strategy = "NO_SHARD";
  std::string device = "auto";
  std::string dtype = "float32";

  struct Result {
    tasks::Scores scores;
    std::int64_t samples = 0;
    std::vector<std::pair<std::string, std::int64_t>> data = {};  // as Task::data_counts()
  };
  [[nodiscard]] int run() const;
  void check_output_of(const std::string& what) const;
  [[nodiscard]] Result evaluate(const Context& context) const;
  [[nodiscard]] Result similarity(const Context& context) const;
  [[nodiscard]] Result accuracy(const Context& context) const;
  [[nodiscard]] Result triplets(const Context& context) const;
  [[nodiscard]] Result perplexity(const Context& context) const;
  [[nodiscard]] Result answers(const Context& context) const;
  [[nodiscard]] Result preferences(const Context& context) const;
  [[nodiscard]] std::int64_t length_of(const models::LanguageModel& model) const;
  [[nodiscard]] tasks::SentenceTable open_table(tasks::SentenceEvaluator evaluator,
                                                std::int64_t classes = 0) const;
  [[nodiscard]] EncoderChoices choices() const {
    return {
        .dtype = parse_compute_dtype(dtype), .strategy = parse_strategy(strategy), .base = base};
  }
};

tasks::SentenceTable EvaluateCommand::open_table(tasks::SentenceEvaluator evaluator,
                                                 std::int64_t classes) const {
  const char* const wanted = task == "triplet"
                                 ? "those of the anchor, of a similar and of a different text"
                                 : "those of the first text, of the second and of the label";
  TESSERA_CHECK(!columns.empty(), ErrorCode::usage,
                "--task {} needs --columns, {}, by number from 1 or by name, as in --columns 6,7,5",
                task, wanted);
  TESSERA_CHECK(columns.size() == pair_columns, ErrorCode::usage,
                "--columns {}: {}; give three, {}, by number from 1 or by name, as in 6,7,5",
                fmt::join(columns, ","), counted(columns.size(), "column"), wanted);
  TESSERA_CHECK(label_scale > 0, ErrorCode::usage, "--label-scale {}: must be above 0",
                label_scale);
  return tasks::SentenceTable({.files = data,
                               .table = {.columns = columns},
                               .evaluator = evaluator,
                               .label_scale = label_scale,
                               .labels = labels,
                               .classes = classes});
}

EvaluateCommand::Result EvaluateCommand::similarity(const Context& context) const {
  const tasks::SentencePairs pairs =
      tasks::read_pairs(open_table(tasks::SentenceEvaluator::similarity));
  const auto [low, high] = std::minmax_element(pairs.labels.begin(), pairs.labels.end());
  TESSERA_CHECK(pairs.size() > 0 && *low < *high, ErrorCode::data,
                "{}: all labels are equal in {}; correlation is not defined", fmt::join(data, ", "),
                counted(pairs.size(), "row"));
  const LoadedEncoder encoder(folder, context, choices());
  const auto scores = tasks::evaluate_similarity(
      pairs, encoder.encode(), {.tokens = encoder.tokens(), .batch_size = batch_size}, context);
  return {scores, static_cast<std::int64_t>(pairs.size())};
}

EvaluateCommand::Result EvaluateCommand::accuracy(const Context& context) const {
  const LoadedEncoder encoder(folder, context, choices());
  const nn::Linear head = encoder.load_head();
  const std::int64_t classes = head->bias().size(0);
  TESSERA_CHECK(labels.empty() || static_cast<std::int64_t>(labels.size()) == classes,
                ErrorCode::usage, "--labels {}: {} names, and the model has {} classes",
                fmt::join(labels, ","), labels.size(), classes);
  const tasks::SentencePairs pairs =
      tasks::read_pairs(open_table(tasks::SentenceEvaluator::accuracy, classes));
  const auto scores = tasks::evaluate_classification(
      pairs, encoder.encode_as_trained(),
      [&](const Tensor& u, const Tensor& v) { return tasks::softmax_logits(u, v, head); },
      {.tokens = encoder.tokens_as_trained(), .batch_size = batch_size}, context);
  return {scores, static_cast<std::int64_t>(pairs.size())};
}

EvaluateCommand::Result EvaluateCommand::triplets(const Context& context) const {
  const tasks::SentenceTriplets triplets =
      tasks::read_triplets(open_table(tasks::SentenceEvaluator::triplet));
  const LoadedEncoder encoder(folder, context, choices());
  const auto scores = tasks::evaluate_triplets(
      triplets, encoder.encode(), {.tokens = encoder.tokens(), .batch_size = batch_size}, context);
  return {scores, static_cast<std::int64_t>(triplets.size())};
}

// The tokens of a sequence.
std::int64_t EvaluateCommand::length_of(const models::LanguageModel& model) const {
  const std::int64_t length = seq_len > 0 ? seq_len : model.positions();
  TESSERA_CHECK(length <= model.positions(), ErrorCode::usage,
                "--seq-len {}: the model has {} positions", length, model.positions());
  return length;
}

EvaluateCommand::Result EvaluateCommand::answers(const Context& context) const {
  TESSERA_CHECK(columns.size() <= 2, ErrorCode::usage,
                "--columns {}: --task sft takes one column of messages, or two of a prompt and a "
                "completion",
                fmt::join(columns, ","));
  const LoadedLanguageModel model(folder, context, choices());
  const tasks::ConversationSamples samples(
      tasks::open_conversations({data, columns}, model.tokenizer(), model.tokenizer_folder(),
                                tasks::LossOn::answers),
      {.seq_len = length_of(model.model()),
       .shuffle = false,
       .padding_id = model.tokenizer().padding_id()});
  if (const std::string note = context.is_main() ? samples.unanswered_note() : ""; !note.empty())
    print_err("{}\n", note);
  EvaluationProgress progress(context, samples.counts().places);
  const auto scores = tasks::evaluate_conversations(
      model.model(), samples, samples.samples_per_epoch(), batch_size, context,
      [&](const tasks::ConversationBatch& batch) { progress.add(batch.tokens); });
  return {scores, samples.samples_per_epoch(), samples.counts().by_name()};
}

bool has_adapters(nn::Module& module) {
  const auto modules = module.named_modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& named) {
    const auto* const layer = dynamic_cast<const nn::LinearImpl*>(named.second);
    return layer != nullptr && layer->has_lora();
  });
}

EvaluateCommand::Result EvaluateCommand::preferences(const Context& context) const {
  TESSERA_CHECK(columns.empty() || columns.size() == 2 || columns.size() == 3, ErrorCode::usage,
                "--columns {}: --task dpo takes three columns, of a prompt, of the chosen and of "
                "the rejected answer, or the last two",
                fmt::join(columns, ","));
  TESSERA_CHECK(beta > 0, ErrorCode::usage, "--beta {}: must be above 0", beta);
  LoadedLanguageModel model(folder, context, choices());
  TESSERA_CHECK(!reference.empty() || has_adapters(model.model()), ErrorCode::usage,
                "--task dpo needs --reference, the folder of the model that {} is compared with",
                folder);
  TESSERA_CHECK(!reference.empty() || model.modules_to_save().empty(), ErrorCode::usage,
                "--task dpo needs --reference for {}: without it the model is compared with itself "
                "without its adapters, and the adapter's modules_to_save ({}) are trained whole; "
                "give --reference the base",
                folder, fmt::join(model.modules_to_save(), ", "));
  std::optional<LoadedLanguageModel> compared;
  if (!reference.empty()) {
    EncoderChoices of_reference = choices();
    of_reference.base = reference_base;
    of_reference.with_tokenizer = false;
    compared.emplace(reference, context, of_reference);
    TESSERA_CHECK(compared->model().vocabulary() == model.model().vocabulary() &&
                      compared->model().positions() >= length_of(model.model()),
                  ErrorCode::configuration,
                  "--reference {}: it has a vocabulary of {} and {} positions, and the model one "
                  "of {} and sequences of {}",
                  reference, compared->model().vocabulary(), compared->model().positions(),
                  model.model().vocabulary(), length_of(model.model()));
  }
  const tasks::PreferenceSamples samples(
      tasks::open_preferences({data, columns}, model.tokenizer(), model.tokenizer_folder()),
      {.seq_len = length_of(model.model()),
       .shuffle = false,
       .padding_id = model.tokenizer().padding_id()});
  const tasks::ComparedModels models = {
      [&](const Tensor& ids, const Tensor& targets) {
        return model.model().row_losses(ids, targets);
      },
      [&](const Tensor& ids, const Tensor& targets) {
        return compared ? compared->model().row_losses(ids, targets)
                        : tasks::losses_without_adapters(model.model(), ids, targets);
      }};
  EvaluationProgress progress(context, samples.counts().places);
  auto scores = tasks::evaluate_preferences(
      models, samples, samples.samples_per_epoch(), batch_size, {.beta = beta}, context,
      [&](const tasks::PreferenceBatch& batch) { progress.add(batch.tokens); });
  scores.pop_back();  // the pairs, which are the samples
  return {scores, samples.samples_per_epoch(), samples.counts().by_name()};
}

EvaluateCommand::Result EvaluateCommand::perplexity(const Context& context) const {
  TESSERA_CHECK(data.size() == 1 && columns.empty(), ErrorCode::usage,
                "--task perplexity takes one file of text or tokens as --data, and no --columns");
  const LoadedLanguageModel model(folder, context, choices());
  const Corpus corpus(data.front(), model.tokenizer());
  corpus.require_vocabulary(model.model().vocabulary(), true);
  const std::int64_t length = length_of(model.model());
  const auto read = [&](std::int64_t first, std::span<std::int32_t> out) {
    corpus.read(first, out);
  };
  EvaluationProgress progress(context, corpus.tokens() - 1);
  const auto scores = tasks::evaluate_perplexity(
      {corpus.tokens(), read}, length, batch_size,
      [&](const Tensor& inputs, const Tensor& targets) {
        Tensor loss = model.model().loss(inputs, targets);
        progress.add(inputs.elements());
        return loss;
      },
      context);
  return {scores, (corpus.tokens() - 2) / length + 1};
}

EvaluateCommand::Result EvaluateCommand::evaluate(const Context& context) const {
  if (task == "similarity") return similarity(context);
  if (task == "accuracy") return accuracy(context);
  if (task == "triplet") return triplets(context);
  if (task == "sft") return answers(context);
  if (task == "dpo") return preferences(context);
  return perplexity(context);
}

void EvaluateCommand::check_output_of(const std::string& what) const {
  logs::OutputFiles outputs;
  for (const std::string& input : data) outputs.add_input(input);
  outputs.add(what, json,
              logs::begins_as("{", fmt::format(R"("format": "{}")", evaluation_format)));
}

int EvaluateCommand::run() const {
  TESSERA_CHECK(std::find(task_names().begin(), task_names().end(), task) != task_names().end(),
                ErrorCode::usage, "--task {}: there are {}{}", task, fmt::join(task_names(), ", "),
                did_you_mean(task, task_names()));
  TESSERA_CHECK(labels.empty() || task == "accuracy", ErrorCode::usage,
                "--labels: --task {} has no classes; leave it out", task);
  TESSERA_CHECK(task == "dpo" || (reference.empty() && reference_base.empty()), ErrorCode::usage,
                "--reference{}: --task {} has none; leave it out", reference.empty() ? "-base" : "",
                task);
  TESSERA_CHECK(reference_base.empty() || !reference.empty(), ErrorCode::usage,
                "--reference-base {}: it is for the adapter in --reference", reference_base);
  TESSERA_CHECK(!data.empty(), ErrorCode::usage, "give the data to evaluate on as --data FILE");
  (void)choices();
  const comm::World world = comm::world_from_environment();
  const Context context = init(training::choose_device(device, world));
  const std::string what = "--json " + json;
  if (context.is_main()) check_output_of(what);  // before the work
  const Result result = evaluate(context);
  if (!context.is_main()) return 0;
  nlohmann::ordered_json report{
      {"format", evaluation_format}, {"task", task}, {"samples", result.samples}};
  print_out("{}, {}\n", task, counted(result.samples, "sample"));
  if (!result.data.empty()) print_out("  {}\n", describe_data(result.data));
  for (const auto& [name, count] : result.data) report["data"][name] = count;
  for (const auto& [name, value] : result.scores) {
    if (name == "tokens") {  // a count
      report[name] = static_cast<std::int64_t>(value);
      print_out("  {:<20} {:.0f}\n", name, value);
      continue;
    }
    report[name] = value;  // an undefined value is null
    print_out("  {:<20} {:.6f}\n", name, value);
  }
  if (!json.empty()) write_output(what, json, report.dump(2) + "\n");
  return 0;
}

}  // namespace

Command describe_evaluate() {
  const auto command = std::make_shared<EvaluateCommand>();
  return {
      .arguments =
          {{.name = "folder",
            .target = &command->folder,
            .help = "A sentence encoder's folder; for perplexity, sft and dpo a language "
                    "model's; a "
                    "run's steps; or an adapter's",
            .type = "FOLDER",
            .required = true},
           base_argument(command->base),
           {.name = "--data",
            .target = &command->data,
            .help =
                "CSV, TSV or JSON lines; for perplexity a text; for sft conversations and for dpo "
                "pairs of answers in JSON lines, Parquet or Arrow. May be repeated, and may be a "
                "pattern",
            .type = "FILE"},
           {.name = "--columns",
            .target = &command->columns,
            .help = "The columns of two texts and their label (triplet: of three texts), by number "
                    "from 1 or by name, as in 6,7,5; for sft that of messages, or those of prompt "
                    "and completion; for dpo those of prompt, chosen and rejected",
            .type = "COLUMNS",
            .separator = ','},
           {.name = "--task",
            .target = &command->task,
            .help = "The task",
            .type = "similarity|accuracy|triplet|perplexity|sft|dpo",
            .shows_default = true},
           {.name = "--labels",
            .target = &command->labels,
            .help = "For accuracy: the names of the classes in the order of training's `labels`; "
                    "without it, labels are numbers from 0",
            .type = "NAMES",
            .separator = ','},
           {.name = "--label-scale",
            .target = &command->label_scale,
            .help = "Labels are divided by this number",
            .shows_default = true},
           {.name = "--json",
            .target = &command->json,
            .help = "Write the results as JSON to this file",
            .type = "FILE"},
           {.name = "--batch-size",
            .target = &command->batch_size,
            .help = "Sentences, or sequences, in one forward",
            .shows_default = true,
            .least = 1},
           {.name = "--seq-len",
            .target = &command->seq_len,
            .help = "Tokens of a sequence for perplexity, sft and dpo; 0: the most that the model "
                    "takes",
            .shows_default = true,
            .least = 0},
           {.name = "--reference",
            .target = &command->reference,
            .help = "For dpo: the folder of the model to compare with; without it, the base of an "
                    "adapter",
            .type = "FOLDER"},
           {.name = "--reference-base",
            .target = &command->reference_base,
            .help = "For dpo: --base of the reference",
            .type = "FOLDER"},
           {.name = "--beta",
            .target = &command->beta,
            .help = "For dpo: train.dpo.beta",
            .shows_default = true},
           {.name = "--sharding-strategy",
            .target = &command->strategy,
            .help = "How ranks shard the parameters; does not change the result",
            .type = planner::strategy_names("|"),
            .shows_default = true},
           encoding_device_argument(command->device),
           encoding_dtype_argument(command->dtype)},
      .run = [command](const std::vector<std::string>&) { return command->run(); },
      .footer =
          "Ranks under `tessera launch` share the samples; the result does not depend on their "
          "number."};
}

}  // namespace tessera::cli
