// The time of a step by activity: the recorder behind `log.trace` and `log.summary`, which programs
// can use too.
//
//   const std::shared_ptr<ts::StepRecorder> recorder = model.record();
//   recorder->begin_step(1);  ...forward, backward...
//   { const ts::ComputeScope scope(recorder.get(), ts::SpanKind::optimizer);  optimizer.step(); }
//   recorder->end_step();
//   const ts::StepRecord& step = recorder->last();
//
// A span reads the clock at its beginning and its end; the first steps allocate the memory for
// spans. On a GPU a span is the time between two events of its queue. Recording changes no
// collective and no bit.
//
// The rank's thread makes all calls; side streams pass their spans through queues.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "sharding/profiler/span.h"

namespace tessera {

class Recording;  // sharding/profiler/recording.h

// The collectives of one step that have purpose and kind in common.
struct CollectiveTotal {
  comm::Phase phase = comm::Phase::other;
  SpanKind kind = SpanKind::all_gather;
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;  // that reached this rank from others
};

// One step of this rank. The sums cover spans that began between begin_step() and end_step();
// `spans` also has the later ones, up to the next begin_step().
struct StepRecord {
  std::int64_t step = 0;
  std::int64_t begin = 0;  // nanoseconds of CLOCK_MONOTONIC
  std::int64_t end = 0;
  std::array<double, exposed_count> exposed_seconds{};  // by Exposed
  double schedule_seconds = 0;  // of a processor, without waits, collectives and kernels
  double exchange_seconds = 0;
  double data_seconds = 0;
  std::int64_t unit_passes = 0;  // forwards and backwards of units, handled by the schedule
  std::vector<CollectiveTotal> collectives;
  std::vector<Span> spans;  // ordered by time within a lane, lanes in no order
  // Lost spans of the step, then those after it. Of spans beyond a million, the sums include what
  // the host knew; spans that a side stream's full queue lost are in no sum.
  std::uint64_t lost = 0;
  std::uint64_t lost_behind = 0;
  [[nodiscard]] double seconds() const { return static_cast<double>(end - begin) * 1e-9; }
  [[nodiscard]] double exposed() const;
  // The step without its waits for collectives, messages and data.
  [[nodiscard]] double busy() const {
    return seconds() - exposed() - exchange_seconds - data_seconds;
  }
};

class StepRecorder {
 public:
  // `units` are the units' names, `device` is the one that they compute on; ShardedModel::record()
  // makes a recorder.
  StepRecorder(std::vector<std::string> units, Device device);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // `step` counts from 1. A step that an exception left is dropped, and so is one in which the
  // device failed.
  void begin_step(std::int64_t step);
  void end_step();
  // Instead of end_step(): nothing of the step is kept.
  void abandon_step();

  // The newest complete step. On a GPU that is the one before the last end_step(), whose events
  // have happened; after complete() it is the last one.
  [[nodiscard]] const StepRecord& last() const;
  // Waits for the device and adds the work after the step: a save, an evaluation.
  void complete();

  // The root is "(root)".
  [[nodiscard]] const std::vector<std::string>& units() const { return units_; }

  // Adds a span of a lane other than compute; called by the rank's thread.
  void add(const Span& span);

  // For the library itself.
  [[nodiscard]] Recording& recording() { return *recording_; }

 private:
  std::vector<std::string> units_;
  std::unique_ptr<Recording> recording_;
};

// The compute lane has the given state during the scope. A null recorder records nothing.
class ComputeScope {
 public:
  explicit ComputeScope(StepRecorder* recorder, SpanKind kind, std::int32_t unit = 0,
                        Exposed exposed = Exposed::other)
      : recorder_(recorder) {
    if (recorder_ != nullptr) enter(kind, unit, exposed);
  }
  // For a collective that the rank's thread makes and waits for: its kind, phase, unit and bytes.
  ComputeScope(StepRecorder* recorder, const Span& collective);
  ~ComputeScope() {
    if (recorder_ != nullptr) leave();
  }
  ComputeScope(const ComputeScope&) = delete;
  ComputeScope& operator=(const ComputeScope&) = delete;

 private:
  void enter(SpanKind kind, std::int32_t unit, Exposed exposed);
  void leave() noexcept;

  StepRecorder* recorder_;
};

}  // namespace tessera
