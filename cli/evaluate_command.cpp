// `tessera evaluate`: how good a model is on a data set, on one rank or many.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/device.h"
#include "cli/encoder_folder.h"
#include "cli/nearest.h"
#include "cli/subcommands.h"
#include "engine/data/corpus.h"
#include "kernels/base/error.h"
#include "tasks/evaluators.h"
#include "tasks/sentence_losses.h"
#include "tasks/table.h"

namespace tessera::cli {
namespace {

// Two texts and a label a row; three texts of triplets.
constexpr std::size_t pair_columns = 3;

const std::vector<std::string>& task_names() {
  static const std::vector<std::string> names = {"similarity", "accuracy", "triplet", "perplexity"};
  return names;
}

struct EvaluateCommand {
  std::string folder;
  std::vector<std::string> data;
  std::vector<std::string> columns;
  std::string task = "similarity";
  double label_scale = 1;
  std::string json;
  std::int64_t batch_size = 32;
  std::int64_t seq_len = 0;
  std::string strategy = "NO_SHARD";
  std::string device = "auto";
  std::string dtype = "float32";

  struct Result {
    tasks::Scores scores;
    std::int64_t samples = 0;
  };
  [[nodiscard]] int run() const;
  [[nodiscard]] Result evaluate(const Context& context) const;
  [[nodiscard]] tasks::SentencePairs read_pairs(bool classes) const;
  [[nodiscard]] Result similarity(const Context& context) const;
  [[nodiscard]] Result accuracy(const Context& context) const;
  [[nodiscard]] Result triplets(const Context& context) const;
  [[nodiscard]] Result perplexity(const Context& context) const;
  [[nodiscard]] tasks::Table open_table(const tasks::Table::Check& check) const;
  [[nodiscard]] EncoderChoices choices() const {
    return {.dtype = parse_compute_dtype(dtype), .strategy = parse_strategy(strategy)};
  }
};

// The number that is all of the text, or none.
std::optional<double> number_in(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string problem_of_number(const std::vector<std::string>& row) {
  if (number_in(row[2])) return {};
  return fmt::format("the label is \"{}\"; a number is wanted", row[2]);
}

std::string problem_of_class(const std::vector<std::string>& row) {
  const std::optional<double> value = number_in(row[2]);
  if (value && *value >= 0 && *value == std::floor(*value)) return {};
  return fmt::format("the label is \"{}\"; the number of a class, from 0, is wanted", row[2]);
}

tasks::Table EvaluateCommand::open_table(const tasks::Table::Check& check) const {
  TESSERA_CHECK(columns.size() == pair_columns, ErrorCode::usage,
                "--columns: {} of {} columns; give {}, by number from 1 or by name, as in 6,7,5",
                fmt::join(columns, ","), columns.size(),
                task == "triplet" ? "those of the anchor, of what is like it and of what is not"
                                  : "those of the first text, of the second and of the label");
  return tasks::Table(data, {.columns = columns}, check);
}

tasks::SentencePairs EvaluateCommand::read_pairs(bool classes) const {
  TESSERA_CHECK(label_scale > 0, ErrorCode::usage, "--label-scale {}: must be above 0",
                label_scale);
  const tasks::Table table = open_table(classes ? problem_of_class : problem_of_number);
  tasks::SentencePairs pairs;
  for (std::int64_t row = 0; row < table.rows(); ++row) {
    std::vector<std::string> values = table.read(row);
    const double label = number_in(values[2]).value_or(0);
    pairs.labels.push_back(classes ? label : label / label_scale);
    pairs.first.push_back(std::move(values[0]));
    pairs.second.push_back(std::move(values[1]));
  }
  return pairs;
}

EvaluateCommand::Result EvaluateCommand::similarity(const Context& context) const {
  const tasks::SentencePairs pairs = read_pairs(false);
  const auto [low, high] = std::minmax_element(pairs.labels.begin(), pairs.labels.end());
  TESSERA_CHECK(pairs.size() > 0 && *low < *high, ErrorCode::data,
                "{}: all labels are alike in {} rows; there is nothing to correlate",
                fmt::join(data, ", "), pairs.size());
  const LoadedEncoder encoder(folder, context, choices());
  const auto scores = tasks::evaluate_similarity(
      pairs, encoder.encode(), {.tokens = encoder.tokens(), .batch_size = batch_size}, context);
  return {scores, static_cast<std::int64_t>(pairs.size())};
}

EvaluateCommand::Result EvaluateCommand::accuracy(const Context& context) const {
  const tasks::SentencePairs pairs = read_pairs(true);
  const LoadedEncoder encoder(folder, context, choices());
  const nn::Linear head = encoder.load_head();
  const double highest = *std::max_element(pairs.labels.begin(), pairs.labels.end());
  TESSERA_CHECK(highest < static_cast<double>(head->bias().size(0)), ErrorCode::data,
                "{}: a label of {}, and the model has {} classes, from 0", fmt::join(data, ", "),
                highest, head->bias().size(0));
  const auto scores = tasks::evaluate_classification(
      pairs, encoder.encode(),
      [&](const Tensor& u, const Tensor& v) { return tasks::softmax_logits(u, v, head); },
      {.tokens = encoder.tokens(), .batch_size = batch_size}, context);
  return {scores, static_cast<std::int64_t>(pairs.size())};
}

EvaluateCommand::Result EvaluateCommand::triplets(const Context& context) const {
  const tasks::Table table = open_table({});
  tasks::SentenceTriplets triplets;
  for (std::int64_t row = 0; row < table.rows(); ++row) {
    std::vector<std::string> values = table.read(row);
    triplets.anchors.push_back(std::move(values[0]));
    triplets.positives.push_back(std::move(values[1]));
    triplets.negatives.push_back(std::move(values[2]));
  }
  const LoadedEncoder encoder(folder, context, choices());
  const auto scores = tasks::evaluate_triplets(
      triplets, encoder.encode(), {.tokens = encoder.tokens(), .batch_size = batch_size}, context);
  return {scores, table.rows()};
}

EvaluateCommand::Result EvaluateCommand::perplexity(const Context& context) const {
  TESSERA_CHECK(data.size() == 1 && columns.empty(), ErrorCode::usage,
                "--task perplexity takes one file of text or tokens as --data, and no --columns");
  const LoadedLanguageModel model(folder, context, choices());
  const Corpus corpus(data.front(), model.tokenizer());
  corpus.require_vocabulary(model.model().vocabulary(), true);
  const std::int64_t length = seq_len > 0 ? seq_len : model.model().positions();
  TESSERA_CHECK(length <= model.model().positions(), ErrorCode::usage,
                "--seq-len {}: the model has {} positions", length, model.model().positions());
  const auto read = [&](std::int64_t first, std::span<std::int32_t> out) {
    corpus.read(first, out);
  };
  const auto scores = tasks::evaluate_perplexity(
      {corpus.tokens(), read}, length, batch_size,
      [&](const Tensor& inputs, const Tensor& targets) {
        return model.model().loss(inputs, targets);
      },
      context);
  return {scores, (corpus.tokens() - 2) / length + 1};
}

EvaluateCommand::Result EvaluateCommand::evaluate(const Context& context) const {
  if (task == "similarity") return similarity(context);
  if (task == "accuracy") return accuracy(context);
  if (task == "triplet") return triplets(context);
  return perplexity(context);
}

int EvaluateCommand::run() const {
  TESSERA_CHECK(std::find(task_names().begin(), task_names().end(), task) != task_names().end(),
                ErrorCode::usage, "--task {}: there are {}{}", task, fmt::join(task_names(), ", "),
                did_you_mean(task, task_names()));
  TESSERA_CHECK(!data.empty(), ErrorCode::usage, "give what to evaluate on as --data FILE");
  (void)choices();
  const comm::World world = comm::world_from_environment();
  const Context context = init(choose_device(device, world));
  std::ofstream output;
  if (!json.empty() && context.is_main()) {  // before the work
    output.open(json, std::ios::binary);
    TESSERA_CHECK(output.is_open(), ErrorCode::configuration, "--json {}: cannot be written: {}",
                  json, describe_errno("open", errno));
  }
  const Result result = evaluate(context);
  if (!context.is_main()) return 0;
  nlohmann::ordered_json report{{"task", task}, {"samples", result.samples}};
  fmt::print("{}, {} samples\n", task, result.samples);
  for (const auto& [name, value] : result.scores) {
    report[name] = value;  // what is not defined is null
    fmt::print("  {:<20} {:.6f}\n", name, value);
  }
  if (json.empty()) return 0;
  output << report.dump(2) << '\n';
  output.close();
  TESSERA_CHECK(output.good(), ErrorCode::runtime, "--json {}: {}", json,
                describe_errno("write", errno));
  return 0;
}

}  // namespace

Command describe_evaluate() {
  const auto command = std::make_shared<EvaluateCommand>();
  return {
      .arguments =
          {{.name = "folder",
            .target = &command->folder,
            .help = "A sentence encoder's folder; for perplexity a language model's; or a run's "
                    "steps",
            .type = "FOLDER",
            .required = true},
           {.name = "--data",
            .target = &command->data,
            .help = "CSV, TSV or JSON lines; for perplexity a text. May be repeated, and may be a "
                    "pattern",
            .type = "FILE"},
           {.name = "--columns",
            .target = &command->columns,
            .help = "The columns of two texts and their label (triplet: of three texts), by number "
                    "from 1 or by name, as in 6,7,5",
            .type = "COLUMNS",
            .separator = ','},
           {.name = "--task",
            .target = &command->task,
            .help = "What to find out",
            .type = "similarity|accuracy|triplet|perplexity",
            .shows_default = true},
           {.name = "--label-scale",
            .target = &command->label_scale,
            .help = "What labels are divided by",
            .shows_default = true},
           {.name = "--json",
            .target = &command->json,
            .help = "Write the results there as well",
            .type = "FILE"},
           {.name = "--batch-size",
            .target = &command->batch_size,
            .help = "Sentences, or sequences, of one forward",
            .shows_default = true,
            .least = 1},
           {.name = "--seq-len",
            .target = &command->seq_len,
            .help = "Tokens of a sequence for perplexity; 0: as many as the model takes",
            .shows_default = true,
            .least = 0},
           {.name = "--sharding-strategy",
            .target = &command->strategy,
            .help = "How ranks share the parameters; no result depends on it",
            .type = "STRATEGY",
            .shows_default = true},
           encoding_device_argument(command->device),
           encoding_dtype_argument(command->dtype)},
      .run = [command](const std::vector<std::string>&) { return command->run(); },
      .footer = "Ranks under `tessera launch` share the samples; the numbers are the same on any."};
}

}  // namespace tessera::cli
