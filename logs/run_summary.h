// The summary at the end of a run: lines for the user, and the file for the recipe's log.summary.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/places/step_statistics.h"
#include "sharding/profiler/step_recorder.h"
#include "trainer/spikes.h"
#include "trainer/step_metrics.h"
#include "training/recipe/recipe.h"

namespace tessera {
class Trainer;
}

namespace tessera::logs {

// Keeps the newest values, up to `most`.
template <class Value>
class LastValues {
 public:
  explicit LastValues(std::size_t most) : most_(most) {}
  void add(const Value& value) {
    if (values_.size() < most_) {
      values_.push_back(value);
    } else {
      values_[oldest_] = value;
      oldest_ = (oldest_ + 1) % most_;
    }
  }
  void reserve(std::size_t count) { values_.reserve(std::min(count, most_)); }
  [[nodiscard]] const std::vector<Value>& values() const { return values_; }  // in no order

 private:
  std::size_t most_;
  std::size_t oldest_ = 0;
  std::vector<Value> values_;
};

// For one rank. Numbers are medians over the last thousand steps after the first three (over all
// steps if there are not more).
class RunSummary {
 public:
  // Throws Error(configuration) if rank 0 cannot write log.summary.
  RunSummary(const training::Recipe& recipe, const Context& context, std::int64_t steps_done);

  // Call it when a step is recorded.
  void end_step(const StepRecord& record);
  // A step that was not used.
  void add(const Spike& spike) { spikes_.push_back(spike); }
  // The parts of the batches that the ranks have taken.
  void add_parts(const StepMetrics& metrics);
  // Collective. Returns lines for the user; rank 0 writes the file. Throws the errors of
  // write_output() if the file system refuses.
  std::vector<std::string> finish(Trainer& training);

  static constexpr std::int64_t warmup_steps = 3;
  static constexpr std::size_t most_steps = 1000;

 private:
  struct Numbers {
    double step = 0, busy = 0, schedule_per_pass = 0;
    double exposed = 0, exchange = 0;
    std::array<double, exposed_count> exposed_by{};
  };
  // A rank's report to rank 0.
  struct Report {
    Numbers medians;
    std::int64_t peak_bytes = 0;
    std::uint64_t lost = 0;
    StepStatistics memory;
  };
  [[nodiscard]] bool may_be_timeline(std::int64_t step) const;
  [[nodiscard]] Numbers medians() const;
  [[nodiscard]] std::string json(const Trainer& training, const std::vector<Report>& reports,
                                 const std::vector<StepRecord>& timeline) const;
  [[nodiscard]] std::vector<std::string> lines(const std::vector<Report>& reports) const;

  std::string path_;  // empty: no file
  bool writes_ = false;
  std::int64_t first_;          // the first step whose numbers count
  std::int64_t timeline_step_;  // the last step that may be the timeline
  std::int64_t steps_ = 0;
  std::int64_t last_step_;
  std::uint64_t lost_ = 0;  // spans of steps that did not fit
  LastValues<Numbers> numbers_{most_steps};
  LastValues<Numbers> warmup_{warmup_steps};  // for a run that ends in its first steps
  std::vector<Spike> spikes_;
  // With data.rank_weights.
  std::vector<std::int64_t> rank_samples_;  // the last step's
  std::int64_t rebalances_ = 0;
  LastValues<double> imbalances_{most_steps};  // since the last change of the parts
  StepRecord timeline_;
  std::vector<CollectiveTotal> collectives_;  // the last step's
};

}  // namespace tessera::logs
