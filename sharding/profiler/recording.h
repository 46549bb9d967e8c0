// The internals of a StepRecorder: the state of the compute lane, and the spans of side streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "sharding/profiler/span_queue.h"
#include "sharding/profiler/step_recorder.h"

namespace tessera {

// The stream that a span comes from.
enum class SideStream : std::uint8_t { gather, reduce, across };

class Recording {
 public:
  struct Moment {
    std::int64_t host = 0;
    PointHandle point;
  };
  // `clock` gives the moments of the compute lane; without one the host and the device do.
  explicit Recording(Device device, std::function<Moment()> clock = {});
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // The implementation of StepRecorder.
  void begin_step(std::int64_t step);
  void end_step();
  void abandon_step();
  void complete();
  void add(const Span& span);
  [[nodiscard]] const StepRecord& last() const { return last_; }

  struct State {
    SpanKind kind = SpanKind::other;
    Exposed exposed = Exposed::other;
    std::int32_t unit = 0;
    comm::Phase phase = comm::Phase::other;  // of a collective on the compute lane
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] Moment now() const;
  // The functions from here on do not throw, because a clean-up calls them as well. After a failure
  // of the device, which the next call on it reports, nothing is recorded until the next
  // begin_step(), and the step is dropped.
  //
  // The compute lane: its state from now on, until leave().
  void enter(const State& state) noexcept;
  void leave() noexcept;
  // A unit's forward or backward begins or ends within a ComputeScope; its state goes below the
  // scope's.
  void open(const State& state) noexcept;
  void close(SpanKind kind, std::int32_t unit) noexcept;
  // The state of the lane when no other state is entered.
  void set_base(SpanKind kind) noexcept;
  void end_backward() noexcept;
  void abandon_backward() noexcept;

  // For the workers of side streams, each with its own queue.
  [[nodiscard]] bool records() const { return recording_.load(std::memory_order_relaxed); }
  void push(SideStream from, RawSpan span) {
    (from == SideStream::gather   ? gather_
     : from == SideStream::reduce ? reduce_
                                  : across_)
        .push(std::move(span));
  }

 private:
  // A step that is not evaluated yet.
  struct Taken {
    std::int64_t step = 0;  // 0: none, or it was dropped
    Moment begin, end;
    Moment anchor;  // a point and its time
    std::int64_t unit_passes = 0;
    std::int64_t schedule = 0;  // nanoseconds of the processor
    bool open = false;          // between begin_step() and end_step()
    std::vector<RawSpan> spans;
    std::size_t spans_of_step = 0;  // of them, up to end_step()
    StepRecord without_room;        // sums and number of spans without room
    std::uint64_t queues_lost = 0;  // before the next count
  };

  // Ends the span of the present state.
  void cut();
  void try_cut() noexcept;
  void drop_step() noexcept;
  void begin_state() noexcept;
  void pump();
  void keep(RawSpan&& span);
  void anchor();
  [[nodiscard]] static std::int64_t time_of(const Moment& anchor, const QueuePoint& point);
  void work_up(Taken& taken);
  void resolve(const Taken& taken, RawSpan& raw) const;
  void keep_sums(const RawSpan& span);
  // The spans that the queues lost since the last call, or since the step's beginning.
  [[nodiscard]] std::uint64_t take_queues_lost();
  void divide_reduction_waits();

  Device device_;
  std::function<Moment()> clock_;
  std::int64_t cost_of_a_look_;  // cost of reading the thread's processor time
  std::atomic<bool> recording_{false};
  SpanQueue gather_, reduce_, across_;
  std::vector<State> states_;  // the first is the base
  Moment since_;               // the present state's beginning
  std::int64_t processor_since_ = 0;
  Moment anchor_;
  Taken current_, before_;
  StepRecord last_;
  std::vector<Span> all_reduces_;  // of the step under evaluation
};

// The work of a side stream's worker during the scope, in the worker's queue.
class SideSpan {
 public:
  SideSpan(StepRecorder* recorder, const Span& what);
  // On another stream than the usual one for such spans.
  SideSpan(StepRecorder* recorder, const Span& what, SideStream from);
  ~SideSpan();
  SideSpan(const SideSpan&) = delete;
  SideSpan& operator=(const SideSpan&) = delete;

 private:
  Recording* recording_ = nullptr;  // null: not recording
  Span span_;
  SideStream from_;
  PointHandle begin_;
};

}  // namespace tessera
