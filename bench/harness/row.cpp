// From a row to `tessera train` with settings, and from its JSONL file to numbers.
#include "bench/harness/row.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "base/counted.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/text/byte_size.h"
#include "bench/harness/file.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/removal.h"
#include "engine/device/backend.h"
#include "engine/storage/output_file.h"
#include "planner/advice.h"
#include "training/recipe/schema.h"

namespace tessera::bench {
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

// Settings that switch off the recipe's saving, logging and evaluating, which are not measured.
std::vector<std::string> quiet_settings(const training::Recipe& recipe) {
  std::vector<std::string> settings;
  for (const training::RecipeKey& key : training::recipe_keys()) {
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

void add_training(std::vector<std::string>& words, const std::string& recipe,
                  const std::string& config_file, const std::vector<std::string>& settings) {
  words.insert(words.end(), {"train", recipe});
  if (!config_file.empty()) words.insert(words.end(), {"--config-file", config_file});
  for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
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

std::uint64_t memory_of_a_rank(const PlanWorld& world) {
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  if (world.device == DeviceType::cpu) {
    const auto free = free_memory_of_host();
    return free ? free->bytes / static_cast<std::uint64_t>(world.ranks) : unknown;
  }
  const std::vector<DeviceDescription> gpus = backend_of(DeviceType::cuda).describe();
  return gpus.empty() ? unknown : gpus.front().memory_bytes;
}

RowRound failure_of(const ProgramEnd& end, double limit) {
  RowRound round;
  round.seconds = end.seconds;
  if (end.timed_out) {
    round.state = RowState::timed_out;
    round.reason = fmt::format("did not end within {:.0f} s and was killed", limit);
    round.exit_code = timed_out_code;
  } else {
    round.state = end.code == out_of_memory_code ? RowState::does_not_fit : RowState::failed;
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
    round.state = RowState::failed;
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
  StepFigures& figures = round.figures;
  round.memory.resident = static_cast<std::uint64_t>(resident);
  const std::vector<double> moved = values_of(steps, first, "comm_bytes");
  const std::vector<double> exposed = values_of(steps, first, "exposed_comm_s");
  figures.comm_bytes = static_cast<std::uint64_t>(quantile(moved, 0.5));
  figures.exposed_s = {{"all", quantile(exposed, 0.5)}};
  read_memory(folder / "memory.json", round.memory);
  read_summary(folder / "summary.json", figures);
  return round;
}

void take_median(Spread& spread, double value, double low, double high) {
  std::vector<double> rounds = std::move(spread.rounds);
  rounds.push_back(value);
  spread = spread_of(std::move(rounds));
  if (spread.rounds.size() > 1) return;
  spread.low = low;
  spread.high = high;
}

}  // namespace

Spread spread_of(std::vector<double> rounds) {
  Spread spread;
  spread.median = quantile(rounds, 0.5);
  spread.low = *std::min_element(rounds.begin(), rounds.end());
  spread.high = *std::max_element(rounds.begin(), rounds.end());
  spread.rounds = std::move(rounds);
  return spread;
}

std::vector<std::string> RowRunner::command(const BenchRow& row, const RowSteps& steps) const {
  std::vector<std::string> words = {program.string()};
  if (row.strategy != "none") {
    const char* ranks = row.strategy == "dp" ? "--threads" : "--nproc-per-node";
    words.insert(words.end(),
                 {"launch", ranks, std::to_string(row.world_size), "--", program.string()});
  }
  std::vector<std::string> settings = quiet_row_settings(row);
  settings.push_back(fmt::format("train.steps={}", steps.warmup + steps.steps));
  // The learning rates follow the recipe's own number of steps.
  settings.push_back(fmt::format("train.lr_decay_steps={}",
                                 row.recipe.train.lr_decay_steps.value_or(row.recipe.train.steps)));
  if (!steps.copy) settings.push_back("log.jsonl=" + (folder / "metrics.jsonl").string());
  if (steps.memory) settings.push_back("log.memory=" + (folder / "memory.json").string());
  if (!steps.copy) settings.push_back("log.summary=" + (folder / "summary.json").string());
  add_training(words, recipe, config_file, settings);
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
  nlohmann::json model = training::to_json(row.recipe)["model"];
  model["seed"] = row.recipe.train.seed;
  fs::path weights =
      folder / fmt::format("weights-{:016x}", checkpoint::checksum(json_text(model)));
  if (fs::exists(weights / "config.json")) return weights;
  std::vector<std::string> words = {program.string()};
  std::vector<std::string> settings = quiet_row_settings(row);
  settings.insert(settings.end(), {"train.steps=1", "train.lr=0", "train.min_lr=0",
                                   "checkpoint.export=" + weights.string()});
  add_training(words, recipe, config_file, settings);
  const ProgramEnd end = processes.run(words, environment(), seconds);
  TESSERA_CHECK(end.code == 0 && !end.timed_out, ErrorCode::runtime,
                "the initial weights for {} could not be written: {}", row.name, end.error);
  return weights;
}

RowRound RowRunner::run(const BenchRow& row, const RowSteps& steps, double seconds) {
  for (const char* name : {"metrics.jsonl", "memory.json", "summary.json"}) {
    checkpoint::remove_tree(folder / name);  // usually it does not exist
  }
  const ProgramEnd end =
      processes.run(command(row, steps), environment(), seconds, SIGTERM, copies(row));
  if (end.timed_out || end.code != 0) return failure_of(end, seconds);
  RowRound round = read_round(row, folder, steps);
  round.seconds = end.seconds;
  return round;
}

// Throws Error(runtime) or the errors of write_output() if the job cannot be given to the ranks.
TimedProducts RowRunner::time_products(const BenchRow& row, double tokens, double seconds) {
  const std::int64_t samples = training::batch_size_per_rank(row.recipe, row.world_size);
  const std::vector<StepProduct> products = row.work->step_products(
      samples, tokens * static_cast<double>(samples), row.recipe.train.gradient_accumulation_steps);
  if (tokens <= 0 || products.empty()) return {};
  const bool gpu = bench_world(row).device == DeviceType::cuda;
  const std::string file = (folder / "products.json").string();
  for (int rank = 0; rank < row.world_size; ++rank) {
    checkpoint::remove_tree(fmt::format("{}.{}", file, rank));
  }
  write_output(file, file,
               json_text(products_job(products, row.precision, gpu ? "cuda" : "cpu", 0.5)));
  const ProgramEnd end =
      processes.run({program.string(), "launch", "--nproc-per-node", std::to_string(row.world_size),
                     "--", program.string(), "bench", "--time-products", file},
                    environment(), seconds);
  if (end.code != 0 || end.timed_out) return {{}, end.error.empty() ? "it failed" : end.error};
  try {
    return {read_product_times(file, row.world_size), {}};
  } catch (const std::exception& error) {
    return {{}, error.what()};
  }
}

RowRound plan_row(const BenchRow& row, std::optional<std::uint64_t> device_memory) {
  const PlanWorld world = bench_world(row);
  training::Recipe recipe = row.recipe;
  // As on a node, whose ranks are a group.
  if (!recipe.sharding.group_size) recipe.sharding.group_size = row.world_size;
  const planner::StrategyPlan planned =
      planner::plan_strategy(recipe, world, recipe.sharding.sharding_strategy);
  RowRound round;
  if (!planned.plan) {
    round.state = RowState::refused;
    round.reason = planned.refused;
    round.exit_code = static_cast<int>(ErrorCode::configuration);
    return round;
  }
  const std::uint64_t total = planned.plan->total();
  round.memory.planned = total;
  const std::uint64_t memory = device_memory ? *device_memory : memory_of_a_rank(world);
  if (total <= memory) return round;
  round.state = RowState::does_not_fit;
  round.reason = fmt::format(
      "a rank needs {}, but only {} are available; tessera plan suggests what would fit",
      bytes_text(total), bytes_text(memory));
  round.exit_code = out_of_memory_code;
  return round;
}

RowResult unmeasured(const BenchRow& row, RowState state, const std::string& reason) {
  RowResult result;
  const RowIdentity& identity = row;
  static_cast<RowIdentity&>(result) = identity;
  result.batch_size = training::batch_size_per_rank(row.recipe, row.world_size);
  if (row.peer) {
    const auto& [name, mode, backend, compile] = *row.peer;
    result.peer = {
        .name = name, .mode = mode, .backend = backend, .compile = compile, .version = {}};
  }
  if (row.work) {
    const ModelFigures& model = *row.work;
    result.model = model;
  }
  result.state = state;
  result.reason = reason;
  return result;
}

void add_round(RowResult& row, const RowRound& round) {
  row.state = round.state;
  row.reason = round.reason;
  row.exit_code = round.exit_code;
  take_median(row.samples_per_s, round.samples_per_s, round.low, round.high);
  const double tokens = round.tokens_per_s / round.samples_per_s;  // of one sample
  take_median(row.tokens_per_s, round.tokens_per_s, round.low * tokens, round.high * tokens);
  const double work = round.samples_per_s * round.step_s;  // samples of one step
  take_median(row.step_s, round.step_s, work / round.high, work / round.low);
  if (row.losses.size() < round.losses.size()) row.losses = round.losses;
  const double median = row.samples_per_s.median;
  const double nearest = std::abs(round.samples_per_s - median);
  for (const double other : row.samples_per_s.rounds) {
    if (std::abs(other - median) < nearest) return;
  }
  static_cast<StepFigures&>(row) = round.figures;
  if (round.memory.resident) row.memory.resident = round.memory.resident;
  if (round.peer) row.peer = round.peer;
}

}  // namespace tessera::bench
