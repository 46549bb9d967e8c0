// From a row to `tessera train` with settings, and from its JSONL file to numbers.
#include "bench/harness/row.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/io/checksum.h"
#include "training/recipe/schema.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr int out_of_memory_code = static_cast<int>(ErrorCode::out_of_memory);
constexpr int timed_out_code = static_cast<int>(ErrorCode::rank_failed);
constexpr std::size_t kept_losses = 10;

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const double place = part * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  const double rest = place - static_cast<double>(below);
  return values[below] * (1 - rest) + values[above] * rest;
}

bool has_key(const std::string& name) {
  const std::vector<RecipeKey>& keys = recipe_keys();
  return std::any_of(keys.begin(), keys.end(),
                     [&](const RecipeKey& key) { return key.name == name && key.read; });
}

// Settings that switch off the recipe's saving, logging and evaluating, which are not measured.
std::vector<std::string> quiet_settings(const Recipe& recipe) {
  std::vector<std::string> settings;
  for (const RecipeKey& key : recipe_keys()) {
    const bool aside = key.name.starts_with("log.") || key.name.starts_with("checkpoint.") ||
                       key.name == "data.valid";
    if (aside && key.optional && recipe.given.contains(key.name))
      settings.push_back(key.name + "=null");
  }
  const auto set_where_given = [&](const char* key, const char* value) {
    if (recipe.given.contains(key)) settings.push_back(fmt::format("{}={}", key, value));
  };
  set_where_given("checkpoint.every", "0");
  set_where_given("checkpoint.async", "false");
  set_where_given("checkpoint.keep_best", "0");
  set_where_given("checkpoint.resume", "never");
  set_where_given("train.eval_every", "0");
  return settings;
}

// The row's settings, then the quiet ones. `key=null` removes a value of the file, but not a value
// of an earlier --set: that setting is left out.
std::vector<std::string> quiet_row_settings(const BenchRow& row) {
  const std::vector<std::string> quiet = quiet_settings(row.recipe);
  std::vector<std::string> settings = row.settings;
  std::erase_if(settings, [&](const std::string& setting) {
    const std::string null = setting.substr(0, setting.find('=')) + "=null";
    return std::find(quiet.begin(), quiet.end(), null) != quiet.end();
  });
  settings.insert(settings.end(), quiet.begin(), quiet.end());
  return settings;
}

std::vector<nlohmann::json> steps_in_file(const fs::path& file) {
  std::vector<nlohmann::json> steps;
  std::ifstream stream(file, std::ios::binary);
  for (std::string line; std::getline(stream, line);) {
    nlohmann::json step = nlohmann::json::parse(line, nullptr, false);
    if (step.is_object() && step.contains("step_s")) steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<double> values_of(const std::vector<nlohmann::json>& steps, std::size_t first,
                              const char* name) {
  std::vector<double> values;
  for (std::size_t i = first; i < steps.size(); ++i) {
    if (steps[i].contains(name) && steps[i][name].is_number()) values.push_back(steps[i][name]);
  }
  return values;
}

BenchJson read_object(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  BenchJson json = BenchJson::parse(stream, nullptr, false);
  return json.is_object() ? json : BenchJson();
}

// Reads the run's log.summary, in addition to its JSONL.
void take_summary(const fs::path& file, BenchJson& details) {
  const BenchJson summary = read_object(file);
  if (summary.is_null()) return;
  constexpr std::pair<const char*, const char*> names[] = {
      {"collectives", "bytes_moved"},
      {"exposed_s", "exposed_s"},
      {"engine_s_per_unit", "engine_s_per_unit"},
      {"timeline", "timeline"}};
  for (const auto& [theirs, ours] : names) {
    if (summary.contains(theirs)) details[ours] = summary[theirs];
  }
}

void take_memory(const fs::path& file, BenchJson& details) {
  BenchJson memory = read_object(file);
  if (!memory.contains("measured")) return;
  BenchJson kinds = memory["measured"];
  details["memory"]["measured"] = kinds.at("total");
  kinds.erase("total");
  details["memory"]["kinds"] = std::move(kinds);
}

RowRound failure_of(const ProgramEnd& end, double limit) {
  RowRound round;
  round.seconds = end.seconds;
  if (end.timed_out) {
    round.status = "timed_out";
    round.reason = fmt::format("did not end within {:.0f} s and was killed", limit);
    round.exit_code = timed_out_code;
  } else {
    round.status = end.code == out_of_memory_code ? "does_not_fit" : "failed";
    round.exit_code = end.code;
    round.reason = end.error.empty() ? fmt::format("ended with code {}", end.code) : end.error;
  }
  return round;
}

RowRound read_round(const BenchRow& row, const fs::path& folder, const RowSteps& wanted) {
  const std::vector<nlohmann::json> steps = steps_in_file(folder / "metrics.jsonl");
  const auto first = static_cast<std::size_t>(wanted.warmup);
  const std::vector<double> times = values_of(steps, first, "step_s");
  RowRound round;
  if (times.empty()) {
    round.status = "failed";
    round.reason = fmt::format("ended after {}, of which {} are warm-up",
                               counted(steps.size(), "step"), first);
    round.exit_code = static_cast<int>(ErrorCode::runtime);
    return round;
  }
  const std::vector<double> samples = values_of(steps, first, "samples_per_s");
  round.step_s = quantile(times, 0.5);
  round.samples_per_s = quantile(samples, 0.5);
  round.low = quantile(samples, 0.25);
  round.high = quantile(samples, 0.75);
  round.tokens_per_s = quantile(values_of(steps, first, "tokens_per_s"), 0.5);
  for (const double loss : values_of(steps, 0, "loss")) {
    if (round.losses.size() < kept_losses) round.losses.emplace_back(loss);
  }
  // The memory of the process; if ranks are its threads, divided by their number.
  const double processes = row.strategy == "dp" ? row.world_size : 1;
  const auto resident = steps.back().value("peak_bytes", 0.0) / processes;
  round.details["memory"]["resident"] = static_cast<std::int64_t>(resident);
  const std::vector<double> moved = values_of(steps, first, "comm_bytes");
  const std::vector<double> exposed = values_of(steps, first, "exposed_comm_s");
  round.details["comm_bytes"] = static_cast<std::int64_t>(quantile(moved, 0.5));
  round.details["exposed_s"] = {{"all", quantile(exposed, 0.5)}};
  take_memory(folder / "memory.json", round.details);
  take_summary(folder / "summary.json", round.details);
  return round;
}

void take_median(BenchJson& row, const char* name, double value, double low, double high) {
  std::vector<double> rounds;
  if (row[name].is_object()) rounds = row[name].value("rounds", std::vector<double>());
  rounds.push_back(value);
  row[name] = spread_of(rounds);
  if (rounds.size() == 1) {
    row[name]["low"] = low;
    row[name]["high"] = high;
  }
  row[name]["rounds"] = rounds;
}

// The numbers behind the row's figures of work.
BenchJson work_json(const BenchRow& row) {
  if (!row.work) return {};
  const ModelWork& work = *row.work;
  const double flops = work.flops_per_sample();
  return {{"architecture", work.architecture},
          {"parameters", work.parameters},
          {"tokens_per_sample", work.seq_len > 0 ? BenchJson(work.seq_len) : BenchJson()},
          {"flops_per_sample", flops > 0 ? BenchJson(flops) : BenchJson()},
          {"flops_per_token", work.flops_per_token()},
          {"formula", work.formula()}};
}

}  // namespace

BenchJson spread_of(const std::vector<double>& values) {
  return {{"median", quantile(values, 0.5)},
          {"low", *std::min_element(values.begin(), values.end())},
          {"high", *std::max_element(values.begin(), values.end())}};
}

std::vector<std::string> RowRunner::command(const BenchRow& row, const RowSteps& steps) const {
  std::vector<std::string> words = {program.string()};
  if (row.strategy != "none") {
    const char* ranks = row.strategy == "dp" ? "--threads" : "--nproc-per-node";
    words.insert(words.end(),
                 {"launch", ranks, std::to_string(row.world_size), "--", program.string()});
  }
  words.insert(words.end(), {"train", recipe});
  if (!config_file.empty()) words.insert(words.end(), {"--config-file", config_file});
  std::vector<std::string> settings = quiet_row_settings(row);
  settings.push_back(fmt::format("train.steps={}", steps.warmup + steps.steps));
  // The learning rates follow the recipe's own number of steps.
  settings.push_back(fmt::format("train.lr_decay_steps={}",
                                 row.recipe.train.lr_decay_steps.value_or(row.recipe.train.steps)));
  if (!steps.copy) settings.push_back("log.jsonl=" + (folder / "metrics.jsonl").string());
  if (steps.memory) settings.push_back("log.memory=" + (folder / "memory.json").string());
  if (!steps.copy && has_key("log.summary")) {
    settings.push_back("log.summary=" + (folder / "summary.json").string());
  }
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  return words;
}

std::vector<std::vector<std::string>> RowRunner::copies(const BenchRow& row) const {
  constexpr std::int64_t without_end = 1'000'000'000;
  std::vector<std::vector<std::string>> all;
  for (int ranks = 2 * row.world_size; ranks <= filled_ranks; ranks += row.world_size) {
    all.push_back(command(row, {.steps = without_end, .warmup = 0, .memory = false, .copy = true}));
  }
  return all;
}

std::map<std::string, std::string> RowRunner::environment() const {
  const std::string threads = std::to_string(threads_per_rank);
  return {{"OMP_NUM_THREADS", threads}, {"TESSERA_NUM_THREADS", threads}};
}

// A step with the learning rate 0 leaves the initial weights unchanged.
fs::path RowRunner::initial_weights(const BenchRow& row, double seconds) {
  nlohmann::json model = to_json(row.recipe)["model"];
  model["seed"] = row.recipe.train.seed;
  fs::path weights =
      folder / fmt::format("weights-{:016x}", checkpoint::checksum(json_text(model)));
  if (fs::exists(weights / "config.json")) return weights;
  std::vector<std::string> words = {program.string(), "train", recipe};
  if (!config_file.empty()) words.insert(words.end(), {"--config-file", config_file});
  std::vector<std::string> settings = quiet_row_settings(row);
  settings.insert(settings.end(), {"train.steps=1", "train.lr=0", "train.min_lr=0",
                                   "checkpoint.export=" + weights.string()});
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
  const ProgramEnd end = processes.run(words, environment(), seconds);
  TESSERA_CHECK(end.code == 0 && !end.timed_out, ErrorCode::runtime,
                "the initial weights for {} could not be written: {}", row.name, end.error);
  return weights;
}

RowRound RowRunner::run(const BenchRow& row, const RowSteps& steps, double seconds) {
  for (const char* name : {"metrics.jsonl", "memory.json", "summary.json"}) {
    std::error_code ignored;  // usually it does not exist
    fs::remove(folder / name, ignored);
  }
  const ProgramEnd end =
      processes.run(command(row, steps), environment(), seconds, SIGTERM, copies(row));
  if (end.timed_out || end.code != 0) return failure_of(end, seconds);
  RowRound round = read_round(row, folder, steps);
  round.seconds = end.seconds;
  return round;
}

BenchJson bench_row_json(const BenchRow& row, const std::string& status,
                         const std::string& reason) {
  BenchJson axes = BenchJson::object();
  for (const auto& [key, value] : row.axes) axes[key] = value;
  BenchJson json = {{"id", row.id},
                    {"variant", row.variant},
                    {"name", row.name},
                    {"launcher", row.launcher},
                    {"strategy", row.strategy},
                    {"world_size", row.world_size},
                    {"precision", row.precision},
                    {"batch_size", batch_size_per_rank(row.recipe, row.world_size)},
                    {"axes", std::move(axes)},
                    {"peer", nullptr}};
  if (row.peer) {
    json["peer"] = {{"name", row.peer->name},
                    {"mode", row.peer->mode},
                    {"backend", row.peer->backend},
                    {"compile", row.peer->compile},
                    {"version", nullptr}};
  }
  json["model"] = work_json(row);
  json["settings"] = nullptr;  // steps, warm-up and rounds, when it is measured
  json["status"] = status;
  json["reason"] = reason;
  json["exit_code"] = 0;
  for (const char* name : {"samples_per_s", "tokens_per_s", "step_s", "speedup", "efficiency"})
    json[name] = nullptr;
  json["memory"] = {
      {"planned", nullptr}, {"measured", nullptr}, {"resident", nullptr}, {"kinds", nullptr}};
  json["bytes_moved"] = BenchJson::array();
  json["comm_bytes"] = nullptr;
  json["exposed_s"] = nullptr;
  for (const char* name : {"engine_s_per_unit", "products", "products_share", "mfu"})
    json[name] = nullptr;
  json["mfu_formula"] = "";
  json["losses"] = BenchJson::array();
  json["timeline"] = nullptr;
  return json;
}

void add_round(BenchJson& row, const RowRound& round) {
  row["status"] = round.status;
  row["reason"] = round.reason;
  row["exit_code"] = round.exit_code;
  take_median(row, "samples_per_s", round.samples_per_s, round.low, round.high);
  const double tokens = round.tokens_per_s / round.samples_per_s;  // of one sample
  take_median(row, "tokens_per_s", round.tokens_per_s, round.low * tokens, round.high * tokens);
  const double work = round.samples_per_s * round.step_s;  // samples of one step
  take_median(row, "step_s", round.step_s, work / round.high, work / round.low);
  if (row["losses"].size() < round.losses.size()) row["losses"] = round.losses;
  const BenchJson& rate = row["samples_per_s"];
  const double median = rate["median"];
  double nearest = std::abs(round.samples_per_s - median);
  for (const double other : rate["rounds"].get<std::vector<double>>()) {
    if (std::abs(other - median) < nearest) return;
  }
  for (const auto& [name, value] : round.details.items()) {
    if (name != "memory") row[name] = value;
  }
  if (!round.details.contains("memory")) return;
  for (const auto& [name, value] : round.details["memory"].items()) row["memory"][name] = value;
}

std::size_t rounds_of(const BenchJson& row) {
  if (!row.contains("samples_per_s") || !row["samples_per_s"].is_object()) return 0;
  return row["samples_per_s"].value("rounds", BenchJson::array()).size();
}

bool is_measured(const BenchJson& row) {
  return row.value("status", "") == "measured" && rounds_of(row) > 0;
}

}  // namespace tessera::cli
