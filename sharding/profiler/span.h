// The parts of a recorded step: spans of time in lanes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "comm/communicator.h"

namespace tessera {

// The activities of a rank that run side by side. A lane's spans do not overlap.
enum class Lane : std::uint8_t {
  compute,     // the rank's own thread; on a GPU its queue
  gather,      // collectives that gather parameters
  reduce,      // collectives that sum gradients
  copy,        // copies of this rank's shard into a collective's memory
  copy_back,   // summed gradients on their way to a file
  save,        // checkpoints
  all_reduce,  // of HYBRID_*: sums between replicas
};
inline constexpr int lane_count = 7;
std::string_view name_of(Lane lane);

enum class SpanKind : std::uint8_t {
  // At any time of a step the compute lane is in one of these, so they add up to the step.
  forward,    // of a unit; of the root, the part outside of other units
  recompute,  // a forward again, in the middle of a backward
  backward,
  optimizer,      // with the norm of the gradients
  data,           // waiting for a batch
  other,          // all other work of the program
  schedule,       // the schedule's own decisions, and other threads on the processor meanwhile
  wait,           // waiting for a collective: exposed communication
  exchange,       // small messages: norms, messages between ranks once a step
  communication,  // a collective on this thread (TESSERA_SERIAL_STREAMS=1)
  // The other lanes.
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,  // on the compute lane: exposed communication
  copy,
  save,
};
std::string_view name_of(SpanKind kind);

// The cause of a wait.
enum class Exposed : std::uint8_t { gather_forward, gather_backward, reduce, all_reduce, other };
inline constexpr int exposed_count = 5;
std::string_view name_of(Exposed exposed);

// A moment is in nanoseconds of CLOCK_MONOTONIC, which the ranks of a node share.
struct Span {
  SpanKind kind = SpanKind::other;
  Lane lane = Lane::compute;
  comm::Phase phase = comm::Phase::other;  // of a collective
  Exposed exposed = Exposed::other;        // of a wait
  std::int32_t unit = 0;                   // index; 0 is the root
  std::uint64_t bytes = 0;                 // that reach this rank from others, or that are copied
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] double seconds() const { return static_cast<double>(end - begin) * 1e-9; }
};

}  // namespace tessera
