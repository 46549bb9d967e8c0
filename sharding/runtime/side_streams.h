// The streams of a sharded model beside the compute stream: their work, collective memory, and what
// is measured of both.
//
// The gather stream casts, publishes and waits for parameters; the reduce stream sums gradients.
// Under HYBRID_* a third one sums the reduce stream's results between replicas. On a GPU each of
// them has a queue: its work begins after the work that the compute stream had put into its own
// queue (Stream::enqueue), and the compute stream joins it in join() only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/device/stream.h"
#include "sharding/profiler/recording.h"
#include "sharding/runtime/process_groups.h"
#include "sharding/runtime/statistics.h"
#include "sharding/units/unit.h"

namespace tessera {

// Used by the compute stream's thread, apart from span_of() and recorder().
class SideStreams {
 public:
  // The groups must outlive this object.
  SideStreams(Device device, const ProcessGroups& groups);

  [[nodiscard]] Stream& gather() { return *gather_; }
  [[nodiscard]] Stream& reduce() { return *reduce_; }
  // The last stream of a reduction: it sums between replicas. The reduce stream, except under
  // HYBRID_*.
  [[nodiscard]] Stream& across() { return across_ ? *across_ : *reduce_; }
  // Finishes all work and ends the threads.
  void end();

  // Puts work into a side stream; the compute stream waits for it.
  template <class Work>
  Event enqueue(Stream& stream, Work work) {
    const ComputeScope here(stream.is_serial() ? recorder() : nullptr, SpanKind::communication);
    return stream.enqueue(for_worker(std::move(work)));
  }
  template <class First, class Second>
  std::pair<Event, Event> enqueue(Stream& stream, First first, Second second) {
    const ComputeScope here(stream.is_serial() ? recorder() : nullptr, SpanKind::communication);
    Stream::Two events =
        stream.enqueue(for_worker(std::move(first)), for_worker(std::move(second)));
    return {std::move(events.first), std::move(events.second)};
  }
  // The compute stream waits for the event; `what` says for what in the profile.
  void join(const Event& event, Exposed what, const Unit& unit);

  // Collective, on a group that is used on the stream. An exception leaves the stream usable.
  [[nodiscard]] std::shared_ptr<comm::Buffer> allocate(Stream& stream, comm::Communicator& group,
                                                       std::string_view name, std::size_t bytes,
                                                       comm::Sharing sharing);
  // Collective, even when this rank's part does not grow. `reserved`: the bytes of the group's
  // scratch before and after.
  void reserve_scratch(Stream& stream, comm::Communicator& group, std::size_t bytes,
                       std::size_t& reserved);
  void count_buffer(std::size_t bytes);
  void drop(std::shared_ptr<comm::Buffer>& buffer);
  // `bytes` reach this rank from others.
  void count_collective(std::uint64_t bytes);
  // The counters of this model.
  [[nodiscard]] CommunicationStatistics statistics() const;

  // The tag of a unit's collective in the present pass, a forward with its backward.
  [[nodiscard]] comm::Tag tag_of(const Unit& unit, comm::Phase phase) const {
    return {pass_, static_cast<std::uint32_t>(unit.index()), phase, unit.learning_rate()};
  }
  [[nodiscard]] std::uint64_t pass() const { return pass_; }
  void end_pass() { ++pass_; }

  // From its first step on, this object records its work in it. `names`: of the units.
  const std::shared_ptr<StepRecorder>& record(std::vector<std::string> names);
  [[nodiscard]] StepRecorder* recorder() const { return recorder_.get(); }
  [[nodiscard]] Recording* recording() const {
    return recorder_ == nullptr ? nullptr : &recorder_->recording();
  }
  [[nodiscard]] static Span span_of(Lane lane, SpanKind kind, const Unit& unit, comm::Phase phase,
                                    std::uint64_t bytes) {
    return {kind, lane, phase, Exposed::other, unit.index(), bytes};
  }

 private:
  template <class Work>
  [[nodiscard]] std::function<void()> for_worker(Work work) const {
    return [control = &groups_.control(), work = std::move(work)] {
      const comm::WorkerScope scope(*control);
      work();
    };
  }

  Device device_;
  const ProcessGroups& groups_;
  CommunicationStatistics statistics_;
  StallClock stalls_;
  std::uint64_t pass_ = 0;
  std::shared_ptr<StepRecorder> recorder_;  // null: not recording
  std::unique_ptr<Stream> gather_, reduce_;
  std::unique_ptr<Stream> across_;  // null: nothing is summed in two levels
};

}  // namespace tessera
