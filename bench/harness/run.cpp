// The order of work: plans, a pilot run of every row, then rounds in which each row has its turn.
#include "bench/harness/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "bench/harness/report.h"

namespace tessera::bench {
namespace {

constexpr std::int64_t pilot_steps = 2;  // the comparison with the plan is made after the second
constexpr std::int64_t most_steps = 20, usual_rounds = 3, enough_steps = 3;
constexpr int time_is_over = static_cast<int>(ErrorCode::rank_failed);

// If the failure concerns all rows, they all get it. A row with rounds keeps them and gets the
// failure in addition.
void set_failed(BenchRow& row, RowState state, const std::string& reason, int code) {
  if (row.result.rounds() == 0) {
    const auto planned = row.result.memory.planned;
    row.result = unmeasured(row, state, reason);
    row.result.memory.planned = planned;
  }
  row.result.reason = reason;
  row.result.exit_code = code;
}

// The settings of a row's measurement, else those of the whole report.
std::optional<RoundSettings> settings_of(const RowResult& row, const BenchReport& report) {
  if (row.settings || !report.settings) return row.settings;
  const RoundSettings& all = *report.settings;
  return all;
}

}  // namespace

BenchRun::BenchRun(const BenchGrid& grid, const BenchSettings& settings, std::vector<BenchRow> rows,
                   RowRunner runner, BenchFile& file, std::string command)
    : grid_(grid),
      settings_(settings),
      rows_(std::move(rows)),
      runner_(std::move(runner)),
      file_(file) {
  report_.recipe = grid.recipe;
  report_.command = std::move(command);
  report_.machine = grid.machine;
  for (BenchRow& row : rows_) {
    row.result = unmeasured(row, RowState::not_run, "");
    if (row.refused)
      set_failed(row, RowState::refused, row.refused->what(),
                 static_cast<int>(row.refused->code()));
    if (!report_.model) report_.model = row.result.model;
  }
}

void BenchRun::take_over(const BenchReport& old, bool again) {
  old_settings_ = old.settings;
  if (!again) take_settings(old);
  for (const RowResult& kept : old.rows) {
    const auto own = std::find_if(rows_.begin(), rows_.end(),
                                  [&](const BenchRow& row) { return row.id == kept.id; });
    if (own == rows_.end()) {
      other_rows_.push_back(kept);
      continue;
    }
    if (!kept.is_measured()) continue;
    RowResult whole = kept;
    whole.variant = own->variant;
    whole.model = own->result.model;
    whole.reason = "";
    whole.exit_code = 0;
    const auto with = settings_of(kept, old);
    const bool same = !with || (with->warmup == settings_.warmup &&
                                (settings_.steps == 0 || with->steps == settings_.steps));
    if (again || !same || own->refused) {
      replaced_[own->id] = std::move(whole);
    } else {
      own->result = std::move(whole);
    }
  }
}

void BenchRun::take_settings(const BenchReport& old) {
  for (const RowResult& kept : old.rows) {
    const bool ours = std::any_of(rows_.begin(), rows_.end(),
                                  [&](const BenchRow& row) { return row.id == kept.id; });
    if (!ours || !kept.is_measured()) continue;
    const RoundSettings with = settings_of(kept, old).value_or(RoundSettings());
    if (settings_.rounds == 0) settings_.rounds = with.rounds;
    if (settings_.steps == 0) settings_.steps = with.steps;
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
  const RowState state = row.result.state;
  const auto rounds = static_cast<std::size_t>(settings_.rounds > 0 ? settings_.rounds : 1);
  return state == RowState::not_run ||
         (state == RowState::measured && row.result.rounds() < rounds);
}

std::vector<BenchRow*> BenchRun::to_measure() {
  std::vector<BenchRow*> rows;
  for (BenchRow& row : rows_) {
    if (wanted(row)) rows.push_back(&row);
  }
  return rows;
}

void BenchRun::note(const std::string& line) const {
  print_err("tessera: {}\n", line);
}

void BenchRun::give_up(BenchRow& row, RowState state, const std::string& reason, int code) {
  given_up_.insert(row.id);
  set_failed(row, state, reason, code);
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
    if (row->peer) continue;
    const RowRound planned = plan_row(*row, settings_.device_memory);
    if (planned.memory.planned) row->result.memory.planned = planned.memory.planned;
    if (planned.state != RowState::measured)
      give_up(*row, planned.state, planned.reason, planned.exit_code);
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
      if (of_peer(row))
        give_up(row, RowState::refused, reason, static_cast<int>(ErrorCode::configuration));
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
    round.state = RowState::failed;
    round.reason = error.what();
    round.exit_code = static_cast<int>(error.code());
  }
  if (round.state == RowState::timed_out && time_left() <= 0) round.state = RowState::not_run;
  return round;
}

// Called after a pilot run of this peer and of our row.
std::string BenchRun::compare_losses(const BenchRow& row, const RowRound& round) const {
  for (const BenchRow& own : rows_) {
    if (own.peer || own.strategy != row.strategy || own.world_size != row.world_size ||
        own.axes != row.axes)
      continue;
    return losses_differ(own.result.losses, round.losses, row.precision);
  }
  return "no row of Tessera to compare its losses with";
}

void BenchRun::settle(BenchRow& row, const RowRound& round) {
  if (round.state == RowState::measured || round.state == RowState::not_run) return;
  give_up(row, round.state, round.reason, round.exit_code);
  note(fmt::format("{}: {}: {}", row.name, name_of(round.state), round.reason));
  keep();
}

void BenchRun::pilot() {
  for (BenchRow* row : to_measure()) {
    if (time_left() <= 0) return;
    const RowRound round = run_once(*row, {pilot_steps, settings_.warmup, !row->peer});
    settle(*row, round);
    if (round.state != RowState::measured) continue;
    if (row->peer) {
      const std::string differ = compare_losses(*row, round);
      if (!differ.empty()) {
        give_up(*row, RowState::failed, differ, static_cast<int>(ErrorCode::runtime));
        note(fmt::format("{}: {}", row->name, differ));
        continue;
      }
    }
    Estimate& estimate = estimates_[row->id];
    const auto steps = static_cast<double>(pilot_steps + settings_.warmup);
    estimate.step = round.step_s;
    estimate.start = std::max(0.0, round.seconds - steps * round.step_s);
    estimate.tokens = round.tokens_per_s / round.samples_per_s;
    const auto planned = row->result.memory.planned;
    row->result.memory = round.memory;
    row->result.memory.planned = planned;
    if (row->result.losses.empty()) row->result.losses = round.losses;
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
                     gpu, training::batch_size_per_rank(row.recipe, row.world_size),
                     row.recipe.train.gradient_accumulation_steps);
}

void BenchRun::time_products_of(const BenchRow& row) {
  const auto found = estimates_.find(row.id);
  const double tokens = found == estimates_.end() ? 0 : found->second.tokens;
  const TimedProducts timed =
      runner_.time_products(row, tokens, std::min(settings_.row_time_limit, time_left()));
  if (timed.times) products_[products_key(row)].push_back(*timed.times);
  if (!timed.problem.empty())
    note(fmt::format("products of {}: could not be timed: {}", row.name, timed.problem));
}

void BenchRun::take_products(BenchRow& row) const {
  const auto found = products_.find(products_key(row));
  if (row.peer || found == products_.end()) return;
  std::vector<double> seconds, rates;
  for (const ProductTimes& times : found->second) {
    seconds.push_back(times.step_s);
    rates.push_back(times.best_flops_per_s);
  }
  ProductTimes products = found->second.front();
  products.step_s = spread_of(seconds).median;
  products.best_flops_per_s = spread_of(rates).high;
  row.result.products = std::move(products);
}

// Marks a row for which the time limit came too early.
void BenchRun::mark_not_run() {
  for (BenchRow* row : to_measure()) {
    if (row->result.rounds() > 0) continue;
    set_failed(*row, RowState::not_run,
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
      if (one.state != RowState::measured) continue;
      nothing_measured_ = false;
      add_round(row->result, one);
      row->result.settings = {settings_.steps, settings_.warmup, settings_.rounds};
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

RowResult BenchRun::shown(const BenchRow& row) const {
  const auto old = replaced_.find(row.id);
  if (old == replaced_.end() || row.result.rounds() > 0) return row.result;
  RowResult kept = old->second;
  kept.reason = row.result.reason;
  kept.exit_code = row.result.exit_code;
  return kept;
}

const BenchReport& BenchRun::report() {
  report_.settings = old_settings_;
  if (!nothing_measured_ || !old_settings_) {
    report_.settings = {
        {settings_.steps, settings_.warmup, settings_.rounds},
        settings_.time_limit > 0 ? std::optional(settings_.time_limit) : std::nullopt,
        settings_.row_time_limit,
        settings_.budget,
        runner_.threads_per_rank,
        grid_.fill_cores};
  }
  report_.rows.clear();
  for (const BenchRow& row : rows_) report_.rows.push_back(shown(row));
  report_.rows.insert(report_.rows.end(), other_rows_.begin(), other_rows_.end());
  for (const RowResult& row : report_.rows) {
    if (row.products) report_.machine.matrix_products = row.products->kernel;
  }
  derive(report_, rows_.size());
  return report_;
}

}  // namespace tessera::bench
