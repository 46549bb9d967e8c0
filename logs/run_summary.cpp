// Medians, the rank that waited longest, and the file.
#include "logs/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/text/byte_size.h"
#include "engine/ops/products/quantized.h"
#include "engine/storage/output_file.h"
#include "logs/log_file.h"
#include "sharding/profiler/trace.h"
#include "trainer/rank_shares.h"
#include "trainer/trainer.h"

namespace tessera::logs {
namespace {

constexpr std::string_view summary_format = "tessera-run-summary";
constexpr comm::Tag summary_tag{0, 0, comm::Phase::metrics};

double median_of_steps(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.3f} s", seconds);
}

nlohmann::ordered_json spans_json(const StepRecord& record, Lane lane, std::int64_t zero,
                                  const std::vector<std::string>& units) {
  nlohmann::ordered_json spans = nlohmann::ordered_json::array();
  for (const Span& span : record.spans) {
    if (span.lane != lane || span.begin >= record.end) continue;
    const bool collective =
        lane == Lane::gather || lane == Lane::reduce || lane == Lane::all_reduce;
    spans.push_back({{"start_s", static_cast<double>(span.begin - zero) * 1e-9},
                     {"end_s", static_cast<double>(span.end - zero) * 1e-9},
                     {"name", units.at(static_cast<std::size_t>(span.unit))},
                     {"phase", collective ? name_of(span.phase) : name_of(span.kind)}});
  }
  return spans;
}

nlohmann::ordered_json timeline_json(const std::vector<StepRecord>& ranks,
                                     const std::vector<std::string>& units) {
  std::int64_t zero = ranks.front().begin;
  for (const StepRecord& record : ranks) zero = std::min(zero, record.begin);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    nlohmann::ordered_json lanes = nlohmann::ordered_json::array();
    for (int lane = 0; lane < lane_count; ++lane) {
      nlohmann::ordered_json spans = spans_json(ranks[rank], static_cast<Lane>(lane), zero, units);
      if (spans.empty()) continue;
      lanes.push_back({{"name", name_of(static_cast<Lane>(lane))}, {"spans", std::move(spans)}});
    }
    list.push_back({{"rank", rank}, {"lanes", std::move(lanes)}});
  }
  return {{"step", ranks.front().step}, {"ranks", std::move(list)}};
}

nlohmann::ordered_json spikes_json(const std::vector<Spike>& spikes) {
  const auto number = [](double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Spike& spike : spikes) {
    list.push_back({{"step", spike.step},
                    {"done", name_of(spike.done)},
                    {"goes_on_after", spike.goes_on_after()},
                    {"loss", number(spike.loss)},
                    {"grad_norm", number(spike.grad_norm)},
                    {"limit", number(spike.limit.value_or(std::nan("")))}});
  }
  return list;
}

std::string spikes_text(const std::vector<Spike>& spikes) {
  const auto back = std::count_if(spikes.begin(), spikes.end(), [](const Spike& spike) {
    return spike.done == SpikeAction::rollback;
  });
  const auto all = static_cast<std::ptrdiff_t>(spikes.size());
  return fmt::format("spikes: {} skipped, {}; the last at step {}", counted(all - back, "step"),
                     counted(back, "roll-back"), spikes.back().step);
}

template <class Reports>
std::uint64_t lost_of(const Reports& reports) {
  std::uint64_t lost = 0;
  for (const auto& report : reports) lost += report.lost;
  return lost;
}

// How many steps of the run had their memory in fixed places, and why the others had not.
std::string places_text(const StepStatistics& memory, std::size_t rank, bool several) {
  std::string text = fmt::format("memory in fixed places: {} of {}", memory.placed,
                                 counted(static_cast<std::int64_t>(memory.steps), "step"));
  if (several) text += fmt::format(" on rank {}", rank);
  if (memory.different == 0) return text;
  const StepDifference& last = memory.last;
  text += fmt::format("; {} allocated otherwise, step {} at its allocation {}: {} instead of {}",
                      counted(static_cast<std::int64_t>(memory.different), "step"), last.step,
                      last.position + 1, last.wanted == 0 ? "its end" : bytes_text(last.wanted),
                      last.recorded == 0 ? "its end" : bytes_text(last.recorded));
  return text;
}

template <class Reports, class Value>
std::size_t largest(const Reports& reports, const Value& value) {
  std::size_t best = 0;
  for (std::size_t rank = 1; rank < reports.size(); ++rank) {
    if (value(reports[rank]) > value(reports[best])) best = rank;
  }
  return best;
}

}  // namespace

RunSummary::RunSummary(const training::Recipe& recipe, const Context& context,
                       std::int64_t steps_done)
    : path_(recipe.log.summary.value_or("")), writes_(context.is_main()), last_step_(steps_done) {
  const std::int64_t steps = std::max<std::int64_t>(recipe.train.steps - steps_done, 1);
  const std::int64_t warmup = steps > warmup_steps ? warmup_steps : 0;
  first_ = steps_done + warmup + 1;
  timeline_step_ = first_ + (steps - warmup - 1) / 2;
  numbers_.reserve(static_cast<std::size_t>(steps));
  if (writes_ && !path_.empty()) check_output_file("log.summary", path_, summary_format);
}

void RunSummary::end_step(const StepRecord& record) {
  if (record.step <= last_step_) return;  // a GPU's records come one step later
  last_step_ = record.step;
  ++steps_;
  collectives_ = record.collectives;
  lost_ += record.lost;
  if (may_be_timeline(record.step)) timeline_ = record;
  const auto passes = static_cast<double>(std::max<std::int64_t>(record.unit_passes, 1));
  const Numbers numbers{record.seconds(), record.busy(),           record.schedule_seconds / passes,
                        record.exposed(), record.exchange_seconds, record.exposed_seconds};
  (record.step < first_ ? warmup_ : numbers_).add(numbers);
}

// The imbalance that is left is that of the newest parts, without their first step, which
// allocates.
void RunSummary::add_parts(const StepMetrics& metrics) {
  if (!metrics.imbalance) return;
  if (metrics.rank_samples == rank_samples_) {
    imbalances_.add(*metrics.imbalance);
  } else {
    if (!rank_samples_.empty()) ++rebalances_;
    rank_samples_ = metrics.rank_samples;
    imbalances_ = LastValues<double>(most_steps);
  }
}

// Copying a record costs time, so up to the middle of the run copies are made at growing distances:
// a run may be stopped at any step, and all ranks must have the same record.
bool RunSummary::may_be_timeline(std::int64_t step) const {
  if (path_.empty() || step > timeline_step_) return false;
  return step <= first_ || step == timeline_step_ ||
         std::has_single_bit(static_cast<std::uint64_t>(step - first_));
}

RunSummary::Numbers RunSummary::medians() const {
  const auto& steps = numbers_.values().empty() ? warmup_.values() : numbers_.values();
  const auto median = [&steps](const auto& value) {
    std::vector<double> values;
    for (const Numbers& numbers : steps) values.push_back(value(numbers));
    return median_of_steps(std::move(values));
  };
  Numbers result;
  result.step = median([](const Numbers& n) { return n.step; });
  result.busy = median([](const Numbers& n) { return n.busy; });
  result.schedule_per_pass = median([](const Numbers& n) { return n.schedule_per_pass; });
  result.exposed = median([](const Numbers& n) { return n.exposed; });
  result.exchange = median([](const Numbers& n) { return n.exchange; });
  for (std::size_t i = 0; i < result.exposed_by.size(); ++i) {
    result.exposed_by[i] = median([i](const Numbers& n) { return n.exposed_by[i]; });
  }
  return result;
}

std::vector<std::string> RunSummary::finish(Trainer& training) {
  training.recorder().complete();
  end_step(training.recorder().last());
  const Report mine{medians(), training.peak_bytes(), lost_, training.step_memory()};
  std::string bytes(sizeof mine, '\0');
  std::memcpy(bytes.data(), &mine, sizeof mine);
  std::vector<Report> reports;
  for (const std::string& part : training.context().communicator().exchange(bytes, summary_tag)) {
    std::memcpy(static_cast<void*>(&reports.emplace_back()), part.data(), sizeof mine);
  }
  std::vector<StepRecord> timeline;
  if (!path_.empty()) timeline = gather_records(training.context(), timeline_);
  if (!writes_ || steps_ == 0) return {};
  if (!path_.empty())
    write_output("log.summary: " + path_, path_, json(training, reports, timeline));
  return lines(reports);
}

std::string RunSummary::json(const Trainer& training, const std::vector<Report>& reports,
                             const std::vector<StepRecord>& timeline) const {
  const Numbers& waited =
      reports[largest(reports, [](const Report& r) { return r.medians.exposed; })].medians;
  nlohmann::ordered_json exposed;
  for (int i = 0; i < exposed_count; ++i) {
    exposed[std::string(name_of(static_cast<Exposed>(i)))] =
        waited.exposed_by[static_cast<std::size_t>(i)];
  }
  nlohmann::ordered_json collectives = nlohmann::ordered_json::array();
  for (const CollectiveTotal& total : collectives_) {
    collectives.push_back({{"phase", name_of(total.phase)},
                           {"collective", name_of(total.kind)},
                           {"calls", total.calls},
                           {"bytes", total.bytes}});
  }
  std::vector<std::int64_t> peaks;
  for (const Report& report : reports) peaks.push_back(report.peak_bytes);
  std::vector<std::uint64_t> placed;
  for (const Report& report : reports) placed.push_back(report.memory.placed);
  std::int64_t parameters = 0;
  for (const auto& parameter : training.model().sharded_parameters()) {
    parameters += parameter_elements(parameter.shape, parameter.local.dtype());
  }
  nlohmann::ordered_json summary = {
      {"format", summary_format},
      {"version", 1},
      {"world_size", reports.size()},
      {"steps", steps_},
      {"parameters", parameters},
      {"units", training.recorder().units().size()},
      {"step_s", waited.step},
      {"exposed_s", std::move(exposed)},
      {"collectives", std::move(collectives)},
      {"engine_s_per_unit", waited.schedule_per_pass},
      {"exchange_s", waited.exchange},
      {"slowest_rank", largest(reports, [](const Report& r) { return r.medians.busy; })},
      {"peak_bytes", peaks},
      {"placed_steps", std::move(placed)},
      {"lost", lost_of(reports)},
      {"spikes", spikes_json(spikes_)},
      {"timeline", timeline_json(timeline, training.recorder().units())}};
  if (!rank_samples_.empty()) {
    summary["rank_samples"] = rank_samples_;
    summary["rebalances"] = rebalances_;
  }
  if (!rank_samples_.empty() || !imbalances_.values().empty()) {
    summary["imbalance"] = median_of_steps(imbalances_.values());
  }
  for (const auto& [name, count] : training.task().data_counts()) summary["data"][name] = count;
  return summary.dump(1) + "\n";
}

std::vector<std::string> RunSummary::lines(const std::vector<Report>& reports) const {
  const std::size_t rank = largest(reports, [](const Report& r) { return r.medians.exposed; });
  const Numbers& waited = reports[rank].medians;
  const bool several = reports.size() > 1;
  const std::string slowest =
      several ? fmt::format("; rank {} computes longest",
                            largest(reports, [](const Report& r) { return r.medians.busy; }))
              : "";
  std::vector<std::string> lines{fmt::format("{}, {} each (median){}", counted(steps_, "step"),
                                             seconds_text(waited.step), slowest)};
  if (several) {
    std::string text;
    for (int i = 0; i < exposed_count; ++i) {
      const double seconds = waited.exposed_by[static_cast<std::size_t>(i)];
      if (seconds <= 0) continue;
      std::string name(name_of(static_cast<Exposed>(i)));
      std::replace(name.begin(), name.end(), '_', ' ');
      text += fmt::format("{}{} {}", text.empty() ? ": " : ", ", name, seconds_text(seconds));
    }
    lines.push_back(fmt::format(
        "exposed communication of a step: {} on rank {}, {:.1f} %{}; small messages {}",
        seconds_text(waited.exposed), rank, 100 * waited.exposed / std::max(waited.step, 1e-12),
        text, seconds_text(waited.exchange)));
    text.clear();
    for (const CollectiveTotal& total : collectives_) {
      text +=
          fmt::format("{}{} {} {} ({})", text.empty() ? "" : ", ", name_of(total.phase),
                      name_of(total.kind), bytes_text(total.bytes), counted(total.calls, "call"));
    }
    if (!text.empty()) lines.push_back("bytes of a step that reach a rank: " + text);
  }
  lines.push_back(fmt::format("host time of the engine: {} a unit and pass",
                              seconds_text(waited.schedule_per_pass)));
  const std::size_t least_placed =
      largest(reports, [](const Report& r) { return r.memory.steps - r.memory.placed; });
  lines.push_back(places_text(reports[least_placed].memory, least_placed, several));
  if (!rank_samples_.empty()) {
    lines.push_back(fmt::format(
        "the ranks' parts of a batch: {} samples, changed {}; the slowest rank computed {:.1f} % "
        "longer than the mean (median)",
        text_of_shares(rank_samples_), counted(rebalances_, "time"),
        100 * median_of_steps(imbalances_.values())));
  } else if (!imbalances_.values().empty()) {
    lines.push_back(fmt::format("the slowest rank computed {:.1f} % longer than the mean (median)",
                                100 * median_of_steps(imbalances_.values())));
  }
  if (!spikes_.empty()) lines.push_back(spikes_text(spikes_));
  if (const std::uint64_t lost = lost_of(reports); lost > 0) {
    lines.push_back(fmt::format(
        "warning: {} spans of steps did not fit: waits and bytes above may be too small", lost));
  }
  return lines;
}

}  // namespace tessera::logs
