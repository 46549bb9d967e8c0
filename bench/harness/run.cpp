// The order of work: plans, a pilot run of every row, then rounds in which each row has its turn.
#include "bench/harness/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/text/byte_size.h"
#include "base/text/printable.h"
#include "bench/harness/report.h"
#include "engine/device/backend.h"
#include "engine/storage/output_file.h"
#include "planner/advice.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t pilot_steps = 2;  // the comparison with the plan is made after the second
constexpr std::int64_t most_steps = 20, usual_rounds = 3, enough_steps = 3;
constexpr int time_is_over = static_cast<int>(ErrorCode::rank_failed);

std::uint64_t memory_of_a_rank(const BenchSettings& settings, const PlanWorld& world) {
  if (settings.device_memory) return *settings.device_memory;
  if (world.device == DeviceType::cpu) {
    const auto free = free_memory_of_host();
    if (free) return free->bytes / static_cast<std::uint64_t>(world.ranks);
    return std::numeric_limits<std::uint64_t>::max();
  }
  const std::vector<DeviceDescription> gpus = backend_of(DeviceType::cuda).describe();
  return gpus.empty() ? std::numeric_limits<std::uint64_t>::max() : gpus.front().memory_bytes;
}

// If the failure concerns all rows, they all get it. A row with rounds keeps them and gets the
// failure in addition.
void set_failed(BenchRow& row, const std::string& status, const std::string& reason, int code) {
  if (rounds_of(row.result) == 0) {
    const BenchJson memory = row.result.value("memory", BenchJson::object());
    row.result = bench_row_json(row, status, reason);
    if (memory.contains("planned")) row.result["memory"]["planned"] = memory["planned"];
  }
  row.result["reason"] = reason;
  row.result["exit_code"] = code;
}

// The settings of a row's measurement, else those of the whole report.
BenchJson settings_of(const BenchJson& row, const BenchJson& report) {
  BenchJson own = row.value("settings", BenchJson());
  if (own.is_object()) return own;
  const BenchJson all = report.value("settings", BenchJson());
  return all.is_object() ? all : BenchJson::object();
}

}  // namespace

BenchRun::BenchRun(const BenchGrid& grid, const BenchSettings& settings, std::vector<BenchRow> rows,
                   RowRunner runner, BenchFile& file, std::string command)
    : grid_(grid),
      settings_(settings),
      rows_(std::move(rows)),
      runner_(std::move(runner)),
      file_(file) {
  report_ = {{"format", bench_format},  {"version", 1},
             {"recipe", grid.recipe},   {"command", std::move(command)},
             {"machine", grid.machine}, {"model", nullptr}};
  for (BenchRow& row : rows_) {
    row.result = bench_row_json(row, "not_run", "");
    if (!row.refused.empty()) set_failed(row, "refused", row.refused, row.refused_code);
    if (report_["model"].is_null()) report_["model"] = row.result["model"];
  }
}

void BenchRun::take_over(const BenchJson& old, bool again) {
  if (old.is_null()) return;
  old_settings_ = old.value("settings", BenchJson());
  if (!again) take_settings(old);
  for (const BenchJson& kept : old.at("rows")) {
    const auto own = std::find_if(rows_.begin(), rows_.end(), [&](const BenchRow& row) {
      return row.id == kept.at("id").get<std::string>();
    });
    if (own == rows_.end()) {
      other_rows_.push_back(kept);
      continue;
    }
    if (!is_measured(kept)) continue;
    BenchJson whole = bench_row_json(*own, "measured", "");
    for (const auto& [name, value] : kept.items()) {
      if (!std::set<std::string>{"variant", "model", "reason", "exit_code"}.contains(name))
        whole[name] = value;
    }
    const BenchJson with = settings_of(kept, old);
    const bool same =
        with.value("warmup", settings_.warmup) == settings_.warmup &&
        (settings_.steps == 0 || with.value("steps", settings_.steps) == settings_.steps);
    if (again || !same || !own->refused.empty()) {
      replaced_[own->id] = std::move(whole);
    } else {
      own->result = std::move(whole);
    }
  }
}

void BenchRun::take_settings(const BenchJson& old) {
  for (const BenchJson& kept : old.at("rows")) {
    const bool ours = std::any_of(rows_.begin(), rows_.end(), [&](const BenchRow& row) {
      return row.id == kept.at("id").get<std::string>();
    });
    if (!ours || !is_measured(kept)) continue;
    const BenchJson with = settings_of(kept, old);
    if (settings_.rounds == 0) settings_.rounds = with.value("rounds", std::int64_t{0});
    if (settings_.steps == 0) settings_.steps = with.value("steps", std::int64_t{0});
    return;
  }
}

double BenchRun::passed() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

double BenchRun::time_left() const {
  return settings_.time_limit > 0 ? settings_.time_limit - passed()
                                  : std::numeric_limits<double>::infinity();
}

bool BenchRun::wanted(const BenchRow& row) const {
  if (given_up_.contains(row.id)) return false;
  const std::string status = row.result.at("status");
  const auto rounds = static_cast<std::size_t>(settings_.rounds > 0 ? settings_.rounds : 1);
  return status == "not_run" || (status == "measured" && rounds_of(row.result) < rounds);
}

std::vector<BenchRow*> BenchRun::to_measure() {
  std::vector<BenchRow*> rows;
  for (BenchRow& row : rows_) {
    if (wanted(row)) rows.push_back(&row);
  }
  return rows;
}

void BenchRun::note(const std::string& line) const {
  fmt::print(stderr, "tessera: {}\n", printable(line));
}

void BenchRun::give_up(BenchRow& row, const std::string& status, const std::string& reason,
                       int code) {
  given_up_.insert(row.id);
  set_failed(row, status, reason, code);
}

void BenchRun::plan_row(BenchRow& row) {
  const PlanWorld world = bench_world(row);
  Recipe recipe = row.recipe;
  // As on a node, whose ranks are a group.
  if (!recipe.sharding.group_size) recipe.sharding.group_size = row.world_size;
  const StrategyPlan planned = plan_strategy(recipe, world, recipe.sharding.sharding_strategy);
  if (!planned.plan) {
    give_up(row, "refused", planned.refused, static_cast<int>(ErrorCode::configuration));
    return;
  }
  const std::uint64_t total = planned.plan->total();
  row.result["memory"]["planned"] = total;
  const std::uint64_t memory = memory_of_a_rank(settings_, world);
  if (total <= memory) return;
  give_up(row, "does_not_fit",
          fmt::format(
              "a rank needs {}, but only {} are available; tessera plan suggests what would fit",
              bytes_text(total), bytes_text(memory)),
          static_cast<int>(ErrorCode::out_of_memory));
}

// The end of the comparison tries again and reports the error then.
void BenchRun::keep() {
  try {
    file_.keep(report());
  } catch (const Error& error) {
    if (!std::exchange(unkept_, true)) note(fmt::format("{}; measuring goes on", error.what()));
  }
}

void BenchRun::plan_memory() {
  for (BenchRow* row : to_measure()) {
    runner_.processes.check_stop();
    if (!row->peer) plan_row(*row);
  }
}

// Each row of a peer reports the modules that its Python lacks.
void BenchRun::check_peers_run() {
  for (const std::string& peer : grid_.peers) {
    const auto of_peer = [&](const BenchRow& row) {
      return row.peer && row.peer->name == peer && wanted(row);
    };
    if (std::none_of(rows_.begin(), rows_.end(), of_peer)) continue;
    const std::string reason = peer_unavailable(settings_.peers, peer, runner_.processes);
    if (reason.empty()) continue;
    note(reason);
    for (BenchRow& row : rows_) {
      if (of_peer(row)) give_up(row, "refused", reason, static_cast<int>(ErrorCode::configuration));
    }
  }
}

// Throws Error(runtime) if Tessera's initial weights cannot be written.
RowRound BenchRun::run_peer_once(BenchRow& row, const RowSteps& steps, double seconds) {
  const PeerJob job = {.steps = steps.steps,
                       .warmup = steps.warmup,
                       .threads_per_rank = runner_.threads_per_rank,
                       .program = runner_.program,
                       .weights = runner_.initial_weights(row, seconds),
                       .folder = runner_.folder,
                       .seconds = seconds};
  return run_peer(settings_.peers, row, job, runner_.processes);
}

RowRound BenchRun::run_once(BenchRow& row, const RowSteps& steps) {
  const double seconds = std::min(settings_.row_time_limit, time_left());
  RowRound round;
  try {
    round = row.peer ? run_peer_once(row, steps, seconds) : runner_.run(row, steps, seconds);
  } catch (const Error& error) {
    round.status = "failed";
    round.reason = error.what();
    round.exit_code = static_cast<int>(error.code());
  }
  if (round.status == "timed_out" && time_left() <= 0) round.status = "not_run";
  return round;
}

// Called after a pilot run of this peer and of our row.
std::string BenchRun::compare_losses(const BenchRow& row, const RowRound& round) const {
  for (const BenchRow& own : rows_) {
    if (own.peer || own.strategy != row.strategy || own.world_size != row.world_size ||
        own.axes != row.axes)
      continue;
    return losses_differ(own.result.at("losses"), round.losses, row.precision);
  }
  return "no row of Tessera to compare its losses with";
}

void BenchRun::settle(BenchRow& row, const RowRound& round) {
  if (round.status == "measured" || round.status == "not_run") return;
  give_up(row, round.status, round.reason, round.exit_code);
  note(fmt::format("{}: {}: {}", row.name, round.status, round.reason));
  keep();
}

void BenchRun::pilot() {
  for (BenchRow* row : to_measure()) {
    if (time_left() <= 0) return;
    const RowRound round = run_once(*row, {pilot_steps, settings_.warmup, !row->peer});
    settle(*row, round);
    if (round.status != "measured") continue;
    if (row->peer) {
      const std::string differ = compare_losses(*row, round);
      if (!differ.empty()) {
        give_up(*row, "failed", differ, static_cast<int>(ErrorCode::runtime));
        note(fmt::format("{}: {}", row->name, differ));
        continue;
      }
    }
    Estimate& estimate = estimates_[row->id];
    const auto steps = static_cast<double>(pilot_steps + settings_.warmup);
    estimate.step = round.step_s;
    estimate.start = std::max(0.0, round.seconds - steps * round.step_s);
    estimate.tokens = round.tokens_per_s / round.samples_per_s;
    const BenchJson found = round.details.value("memory", BenchJson::object());
    for (const auto& [name, value] : found.items()) row->result["memory"][name] = value;
    if (row->result["losses"].empty()) row->result["losses"] = round.losses;
    note(fmt::format("pilot: {}: {:.4g} samples/s", row->name, round.samples_per_s));
  }
}

// Three rounds of as many steps as there is time for; fewer rounds if there are fewer than three
// steps.
void BenchRun::choose_steps(const std::vector<BenchRow*>& rows) {
  double fixed = 0, step = 0;
  std::set<std::string> products;
  for (const BenchRow* row : rows) {
    const Estimate& estimate = estimates_[row->id];
    fixed += estimate.start + static_cast<double>(settings_.warmup) * estimate.step;
    step += estimate.step;
    if (!row->peer && products.insert(products_key(*row)).second) fixed += 1.0 + 4 * estimate.step;
  }
  const double left = std::min(settings_.budget - passed(), time_left());
  const auto steps_for = [&](std::int64_t rounds) {
    const double each = (left / static_cast<double>(rounds) - fixed) / std::max(step, 1e-9);
    return static_cast<std::int64_t>(std::floor(
        std::clamp(each, 0.0, static_cast<double>(std::max(most_steps, settings_.steps)))));
  };
  const bool chosen_rounds = settings_.rounds > 0;
  if (!chosen_rounds) settings_.rounds = usual_rounds;
  const std::int64_t least = settings_.steps > 0 ? settings_.steps : enough_steps;
  while (!chosen_rounds && settings_.rounds > 1 && steps_for(settings_.rounds) < least) {
    --settings_.rounds;
  }
  if (settings_.steps == 0) {
    settings_.steps = std::max<std::int64_t>(steps_for(settings_.rounds), 1);
    if (steps_for(settings_.rounds) < 1 && !rows.empty()) {
      note(fmt::format(
          "the budget of {:.0f} s is too small for a step of each of {} rows; measuring "
          "one of each",
          settings_.budget, rows.size()));
    }
  }
}

std::string BenchRun::products_key(const BenchRow& row) const {
  const bool gpu = bench_world(row).device == DeviceType::cuda;
  return fmt::format("{} {} {} {} {} {}", fmt::ptr(row.work.get()), row.world_size, row.precision,
                     gpu, batch_size_per_rank(row.recipe, row.world_size),
                     row.recipe.train.gradient_accumulation_steps);
}

void BenchRun::time_products_of(const BenchRow& row) {
  const std::int64_t samples = batch_size_per_rank(row.recipe, row.world_size);
  const auto found = estimates_.find(row.id);
  const double tokens = found == estimates_.end() ? 0 : found->second.tokens;
  const std::vector<StepProduct> products = row.work->step_products(
      samples, tokens * static_cast<double>(samples), row.recipe.train.gradient_accumulation_steps);
  if (tokens <= 0 || products.empty()) return;
  const bool gpu = bench_world(row).device == DeviceType::cuda;
  const std::string file = (runner_.folder / "products.json").string();
  for (int rank = 0; rank < row.world_size; ++rank) {
    std::error_code ignored;
    std::filesystem::remove(fmt::format("{}.{}", file, rank), ignored);
  }
  write_output(file, file,
               json_text(products_job(products, row.precision, gpu ? "cuda" : "cpu", 0.5)));
  const std::string program = runner_.program.string();
  const ProgramEnd end =
      runner_.processes.run({program, "launch", "--nproc-per-node", std::to_string(row.world_size),
                             "--", program, "bench", "--time-products", file},
                            runner_.environment(), std::min(settings_.row_time_limit, time_left()));
  std::vector<ProductTimes>& times = products_[products_key(row)];
  if (end.code != 0 || end.timed_out) {
    note(fmt::format("products of {}: could not be timed: {}", row.name, end.error));
    return;
  }
  try {
    times.push_back(read_product_times(file, row.world_size));
  } catch (const std::exception& error) {
    note(fmt::format("products of {}: could not be timed: {}", row.name, error.what()));
  }
}

void BenchRun::take_products(BenchRow& row) const {
  const auto found = products_.find(products_key(row));
  if (row.peer || found == products_.end() || found->second.empty()) return;
  std::vector<double> seconds, rates;
  for (const ProductTimes& times : found->second) {
    seconds.push_back(times.step_s);
    rates.push_back(times.best_flops_per_s);
  }
  const ProductTimes& any = found->second.front();
  row.result["products"] = {{"step_s", spread_of(seconds)["median"]},
                            {"flops", any.flops},
                            {"best_flops_per_s", spread_of(rates)["high"]},
                            {"dtype", any.dtype},
                            {"kernel", any.kernel}};
}

// Marks a row for which the time limit came too early.
void BenchRun::mark_not_run() {
  for (BenchRow* row : to_measure()) {
    if (rounds_of(row->result) > 0) continue;
    set_failed(*row, "not_run",
               fmt::format("the time limit of {:.0f} s had passed", settings_.time_limit),
               time_is_over);
  }
}

void BenchRun::measure() {
  begin_ = Clock::now();
  plan_memory();
  check_peers_run();
  if (!to_measure().empty()) pilot();
  const std::vector<BenchRow*> rows = to_measure();
  choose_steps(rows);
  for (std::int64_t round = 1; round <= settings_.rounds && time_left() > 0; ++round) {
    std::set<std::string> products;
    for (BenchRow* row : rows) {
      if (!wanted(*row) || time_left() <= 0) continue;
      const RowRound one = run_once(*row, {settings_.steps, settings_.warmup, false});
      settle(*row, one);
      if (one.status != "measured") continue;
      nothing_measured_ = false;
      add_round(row->result, one);
      row->result["settings"] = {
          {"steps", settings_.steps}, {"warmup", settings_.warmup}, {"rounds", settings_.rounds}};
      note(fmt::format("round {} of {}: {}: {:.4g} samples/s", round, settings_.rounds, row->name,
                       one.samples_per_s));
      keep();
      if (!row->peer && products.insert(products_key(*row)).second) time_products_of(*row);
      take_products(*row);
      keep();
    }
  }
  if (time_left() <= 0) mark_not_run();
}

BenchJson BenchRun::shown(const BenchRow& row) const {
  const auto old = replaced_.find(row.id);
  if (old == replaced_.end() || rounds_of(row.result) > 0) return row.result;
  BenchJson kept = old->second;
  for (const char* name : {"reason", "exit_code"}) kept[name] = row.result.at(name);
  return kept;
}

const BenchJson& BenchRun::report() {
  const bool as_before = nothing_measured_ && old_settings_.is_object();
  if (as_before) report_["settings"] = old_settings_;
  if (!as_before)
    report_["settings"] = {
        {"steps", settings_.steps},
        {"warmup", settings_.warmup},
        {"rounds", settings_.rounds},
        {"time_limit_s", settings_.time_limit > 0 ? BenchJson(settings_.time_limit) : BenchJson()},
        {"row_time_limit_s", settings_.row_time_limit},
        {"budget_s", settings_.budget},
        {"threads_per_rank", runner_.threads_per_rank},
        {"fill_cores", grid_.fill_cores}};
  report_["rows"] = BenchJson::array();
  for (const BenchRow& row : rows_) report_["rows"].push_back(shown(row));
  for (const BenchJson& row : other_rows_) report_["rows"].push_back(row);
  for (const BenchJson& row : report_["rows"]) {
    if (row["products"].is_object())
      report_["machine"]["matrix_products"] = row["products"].value("kernel", "");
  }
  derive(report_, rows_.size());
  return report_;
}

}  // namespace tessera::cli
