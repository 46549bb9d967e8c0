// Records spans and evaluates those of a step.
#include "sharding/profiler/recording.h"

#include <ctime>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

// Limits of the side streams' queues, which the rank's thread empties when they are half full, and
// of the nesting of scopes.
constexpr std::size_t queued_spans = 2048;
constexpr std::size_t nested_scopes = 64;
// Limits for a step, and for the time between it and the next: 64 bytes for each span.
constexpr std::size_t most_spans = std::size_t{1} << 20;
constexpr std::size_t most_spans_behind = std::size_t{1} << 14;
constexpr std::size_t most_saves_behind = std::size_t{1} << 10;  // beside those of an evaluation
// The clocks of the GPU and of the host drift apart by tens of microseconds in a second.
constexpr std::int64_t anchored_nanoseconds = 1'000'000'000;
constexpr std::int64_t narrow_anchor_nanoseconds = 50'000;
constexpr int anchor_tries = 8;

std::int64_t host_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The time of this thread on a processor. A woken side stream may take the core at once: that time
// is not work of the schedule.
std::int64_t thread_processor_time() {
  timespec time{};
  TESSERA_SYSTEM(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time));
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// The time that one reading of that clock adds between two readings: a system call, which could be
// most of a small unit's pass. It is not work of the schedule.
std::int64_t cost_of_a_look() {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t before = thread_processor_time();
  for (int i = 0; i < 100; ++i) {
    const std::int64_t now = thread_processor_time();
    least = std::min(least, now - before);
    before = now;
  }
  return std::max<std::int64_t>(least, 0);
}

bool is_collective(SpanKind kind) {
  return kind == SpanKind::all_gather || kind == SpanKind::reduce_scatter ||
         kind == SpanKind::all_reduce || kind == SpanKind::all_to_all;
}

SideStream stream_of(Lane lane) {
  if (lane == Lane::all_reduce) return SideStream::across;
  return lane == Lane::reduce || lane == Lane::copy_back ? SideStream::reduce : SideStream::gather;
}

void add_traffic(StepRecord& sums, const CollectiveTotal& more) {
  const auto alike = [&more](const CollectiveTotal& total) {
    return total.kind == more.kind && total.phase == more.phase;
  };
  auto total = std::find_if(sums.collectives.begin(), sums.collectives.end(), alike);
  if (total == sums.collectives.end())
    total = sums.collectives.insert(total, {more.phase, more.kind});
  total->calls += more.calls;
  total->bytes += more.bytes;
}

void add_to_sums(StepRecord& sums, const Span& span) {
  // A collective on the compute lane is a wait as a whole.
  if (span.kind == SpanKind::wait || (span.lane == Lane::compute && is_collective(span.kind)))
    sums.exposed_seconds[static_cast<std::size_t>(span.exposed)] += span.seconds();
  if (span.kind == SpanKind::exchange) sums.exchange_seconds += span.seconds();
  if (span.kind == SpanKind::data) sums.data_seconds += span.seconds();
  if (is_collective(span.kind)) add_traffic(sums, {span.phase, span.kind, 1, span.bytes});
}

void clear_sums(StepRecord& sums) {
  sums.exposed_seconds.fill(0);
  sums.exchange_seconds = sums.data_seconds = 0;
  sums.collectives.clear();
  sums.lost = sums.lost_behind = 0;
}

}  // namespace

double StepRecord::exposed() const {
  return std::accumulate(exposed_seconds.begin(), exposed_seconds.end(), 0.0);
}

Recording::Recording(Device device, std::function<Moment()> clock)
    : device_(device),
      clock_(std::move(clock)),
      cost_of_a_look_(cost_of_a_look()),
      gather_(queued_spans),
      reduce_(queued_spans),
      across_(queued_spans) {
  states_.reserve(nested_scopes);
  states_.push_back({});
}

// The host's time of a point of the queue, once the queue has passed it.
std::int64_t Recording::time_of(const Moment& anchor, const QueuePoint& point) {
  point.synchronize();
  return anchor.host + static_cast<std::int64_t>(point.seconds_since(*anchor.point) * 1e9);
}

Recording::Moment Recording::now() const {
  if (clock_) return clock_();
  Moment moment{host_now(), nullptr};
  if (device_.type == DeviceType::cuda) moment.point = current_queue(device_).record_timed();
  return moment;
}

// A point of the queue at a time that the host knows, because the queue is empty. The thread may
// lose its core between the point and the reading of the clock: of several tries, the narrowest
// counts. No moment before the new point may come out later than a moment after it, so that steps
// do not overlap where the two clocks have drifted apart.
void Recording::anchor() {
  const bool is_young = anchor_.host != 0 && host_now() - anchor_.host < anchored_nanoseconds;
  if (device_.type != DeviceType::cuda || is_young) return;
  DeviceQueue& queue = current_queue(device_);
  queue.synchronize();
  Moment best;
  std::int64_t narrowest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < anchor_tries && narrowest > narrow_anchor_nanoseconds; ++i) {
    const std::int64_t before = host_now();
    Moment moment{before, queue.record_timed()};
    moment.point->synchronize();
    const std::int64_t width = host_now() - before;
    if (width >= narrowest) continue;
    narrowest = width;
    moment.host += width / 2;
    best = std::move(moment);
  }
  if (anchor_.point && since_.point)
    best.host = std::max(best.host, time_of(anchor_, *since_.point));
  anchor_ = std::move(best);
}

void Recording::begin_step(std::int64_t step) {
  TESSERA_REQUIRE(step != 0, "steps are numbered from 1");
  if (device_.type == DeviceType::cuda && current_.step != 0 && !current_.open) {
    cut();
    pump();
    current_.without_room.lost_behind += take_queues_lost();
    std::swap(current_, before_);
  }
  anchor();
  pump();
  current_.spans.clear();
  current_.step = step;
  current_.unit_passes = current_.schedule = 0;
  clear_sums(current_.without_room);
  current_.queues_lost = gather_.lost() + reduce_.lost() + across_.lost();
  current_.open = true;
  current_.anchor = anchor_;
  current_.begin = since_ = now();
  states_.front() = {};
  recording_.store(true, std::memory_order_relaxed);
}

void Recording::end_step() {
  TESSERA_REQUIRE(current_.open, "end_step() outside of a step");
  if (current_.step == 0) {  // dropped
    current_.open = false;
    return;
  }
  cut();
  current_.end = since_;
  pump();
  current_.without_room.lost += take_queues_lost();
  current_.open = false;
  current_.spans_of_step = current_.spans.size();
  states_.front() = {};
  if (device_.type == DeviceType::cuda) {
    if (before_.step != 0) work_up(before_);
    before_.step = 0;
  } else {
    work_up(current_);
  }
}

void Recording::abandon_step() {
  drop_step();
  end_step();
}

void Recording::complete() {
  TESSERA_REQUIRE(!current_.open, "complete() within step {}", current_.step);
  if (current_.step == 0) return;
  cut();
  pump();
  current_.without_room.lost_behind += take_queues_lost();
  work_up(current_);
  before_.step = 0;
}

void Recording::add(const Span& span) {
  if (records()) keep({span, nullptr, nullptr});
}

// An evaluation may take any time, and must leave room for the saves.
void Recording::keep(RawSpan&& span) {
  std::size_t most = current_.open ? most_spans : current_.spans_of_step + most_spans_behind;
  if (!current_.open && span.span.lane == Lane::save) most += most_saves_behind;
  span.of_step = current_.open || span.span.begin < current_.end.host;
  if (current_.spans.size() < most) {
    current_.spans.push_back(std::move(span));
  } else {
    keep_sums(span);
  }
}

// Adds a span without room to the sums. Its time on the device is unknown then.
void Recording::keep_sums(const RawSpan& span) {
  StepRecord& sums = current_.without_room;
  if (!span.of_step) {
    ++sums.lost_behind;
    return;
  }
  ++sums.lost;
  Span counted = span.span;
  if (span.begin) counted.end = counted.begin;
  add_to_sums(sums, counted);
}

std::uint64_t Recording::take_queues_lost() {
  const std::uint64_t lost = gather_.lost() + reduce_.lost();
  return lost - std::exchange(current_.queues_lost, lost);
}

void Recording::cut() {
  if (!records()) return;
  Moment moment = now();
  const State& state = states_.back();
  if (moment.host > since_.host) {
    Span span{state.kind, Lane::compute, state.phase, state.exposed, state.unit, state.bytes};
    span.begin = since_.host;
    span.end = moment.host;
    keep({span, std::move(since_.point), moment.point});
  }
  since_ = std::move(moment);
  if (state.kind == SpanKind::schedule && current_.open) {
    const std::int64_t now = thread_processor_time();
    current_.schedule += std::max<std::int64_t>(0, now - processor_since_ - cost_of_a_look_);
    processor_since_ = now;
  }
  if (gather_.is_filling() || reduce_.is_filling() || across_.is_filling()) pump();
}

void Recording::try_cut() noexcept {
  try {
    cut();
  } catch (const std::exception&) {
    drop_step();
  }
}

void Recording::drop_step() noexcept {
  recording_.store(false, std::memory_order_relaxed);
  current_.step = 0;
}

void Recording::begin_state() noexcept {
  if (states_.back().kind != SpanKind::schedule || !current_.open) return;
  try {
    processor_since_ = thread_processor_time();
  } catch (const std::exception&) {
    drop_step();
  }
}

void Recording::enter(const State& state) noexcept {
  try_cut();
  states_.push_back(state);
  begin_state();
}

void Recording::leave() noexcept {
  try_cut();
  states_.pop_back();
  begin_state();
}

void Recording::open(const State& state) noexcept {
  if (state.kind == SpanKind::forward) set_base(SpanKind::forward);
  states_.insert(states_.end() - 1, state);
  ++current_.unit_passes;
}

void Recording::close(SpanKind kind, std::int32_t unit) noexcept {
  const auto base = states_.rend() - 1;
  const auto found = std::find_if(states_.rbegin(), base, [kind, unit](const State& state) {
    return state.kind == kind && state.unit == unit;
  });
  if (found == base) return;
  if (found == states_.rbegin()) try_cut();
  states_.erase(std::next(found).base());
}

void Recording::abandon_backward() noexcept {
  try_cut();
  const auto of_units = [](const State& state) { return state.kind == SpanKind::backward; };
  states_.erase(std::remove_if(states_.begin() + 1, states_.end(), of_units), states_.end());
  states_.front() = {};
}

void Recording::end_backward() noexcept {
  current_.unit_passes += 2;  // the root's
  set_base(SpanKind::other);
}

void Recording::set_base(SpanKind kind) noexcept {
  if (states_.front().kind == kind) return;
  if (states_.size() == 1) try_cut();
  states_.front() = {kind};
}

void Recording::pump() {
  const auto take = [this](RawSpan&& span) { keep(std::move(span)); };
  gather_.drain(take);
  reduce_.drain(take);
  across_.drain(take);
}

// Converts a queue's points to moments.
void Recording::resolve(const Taken& taken, RawSpan& raw) const {
  if (!raw.begin || !raw.end || !taken.anchor.point) return;
  raw.span.begin = time_of(taken.anchor, *raw.begin);
  raw.span.end = time_of(taken.anchor, *raw.end);
  raw.begin = raw.end = nullptr;
}

void Recording::work_up(Taken& taken) {
  RawSpan whole{{}, taken.begin.point, taken.end.point};
  whole.span.begin = taken.begin.host;
  whole.span.end = taken.end.host;
  resolve(taken, whole);
  last_.step = taken.step;
  last_.begin = whole.span.begin;
  last_.end = whole.span.end;
  const StepRecord& more = taken.without_room;
  last_.exposed_seconds = more.exposed_seconds;
  last_.schedule_seconds = static_cast<double>(taken.schedule) * 1e-9;
  last_.exchange_seconds = more.exchange_seconds;
  last_.data_seconds = more.data_seconds;
  last_.unit_passes = taken.unit_passes;
  last_.collectives = more.collectives;
  last_.spans.clear();
  last_.lost = more.lost;
  last_.lost_behind = more.lost_behind;
  for (RawSpan& raw : taken.spans) {
    resolve(taken, raw);
    if (raw.of_step) add_to_sums(last_, raw.span);
    last_.spans.push_back(raw.span);
  }
  divide_reduction_waits();
}

// HYBRID_* waits for both of its reductions at once: the part of a wait within an all-reduce
// belongs to the all-reduce. Both lists are in the order of time.
void Recording::divide_reduction_waits() {
  all_reduces_.clear();
  bool scatters = false;
  for (const Span& span : last_.spans) {
    scatters = scatters || span.kind == SpanKind::reduce_scatter;
    if (span.kind == SpanKind::all_reduce) all_reduces_.push_back(span);
  }
  if (!scatters || all_reduces_.empty()) return;
  double& reduce = last_.exposed_seconds[static_cast<std::size_t>(Exposed::reduce)];
  double& all_reduce = last_.exposed_seconds[static_cast<std::size_t>(Exposed::all_reduce)];
  std::size_t first = 0;
  for (const Span& wait : last_.spans) {
    if (wait.kind != SpanKind::wait || wait.exposed != Exposed::reduce) continue;
    if (wait.begin >= last_.end) break;
    while (first < all_reduces_.size() && all_reduces_[first].end <= wait.begin) ++first;
    for (std::size_t i = first; i < all_reduces_.size() && all_reduces_[i].begin < wait.end; ++i) {
      const std::int64_t common =
          std::min(wait.end, all_reduces_[i].end) - std::max(wait.begin, all_reduces_[i].begin);
      reduce -= static_cast<double>(common) * 1e-9;
      all_reduce += static_cast<double>(common) * 1e-9;
    }
  }
}

StepRecorder::StepRecorder(std::vector<std::string> units, Device device)
    : units_(std::move(units)), recording_(std::make_unique<Recording>(device)) {
  for (std::string& name : units_) {
    if (name.empty()) name = "(root)";
  }
}

StepRecorder::~StepRecorder() = default;

void StepRecorder::begin_step(std::int64_t step) {
  recording_->begin_step(step);
}
void StepRecorder::end_step() {
  recording_->end_step();
}
void StepRecorder::abandon_step() {
  recording_->abandon_step();
}
void StepRecorder::complete() {
  recording_->complete();
}
void StepRecorder::add(const Span& span) {
  recording_->add(span);
}
const StepRecord& StepRecorder::last() const {
  return recording_->last();
}

void ComputeScope::enter(SpanKind kind, std::int32_t unit, Exposed exposed) {
  recorder_->recording().enter({kind, exposed, unit});
}

ComputeScope::ComputeScope(StepRecorder* recorder, const Span& collective) : recorder_(recorder) {
  if (recorder_ == nullptr) return;
  recorder_->recording().enter(
      {collective.kind, collective.exposed, collective.unit, collective.phase, collective.bytes});
}

void ComputeScope::leave() noexcept {
  recorder_->recording().leave();
}

SideSpan::SideSpan(StepRecorder* recorder, const Span& what)
    : SideSpan(recorder, what, stream_of(what.lane)) {}

SideSpan::SideSpan(StepRecorder* recorder, const Span& what, SideStream from)
    : span_(what), from_(from) {
  if (recorder == nullptr || !recorder->recording().records()) return;
  recording_ = &recorder->recording();
  Recording::Moment moment = recording_->now();
  span_.begin = moment.host;
  begin_ = std::move(moment.point);
}

SideSpan::~SideSpan() {
  if (recording_ == nullptr) return;
  try {
    Recording::Moment moment = recording_->now();
    span_.end = moment.host;
    recording_->push(from_, {span_, std::move(begin_), std::move(moment.point)});
  } catch (const std::exception&) {
    // The device has failed: the work itself, or a wait for it, reports the error.
  }
}

}  // namespace tessera
