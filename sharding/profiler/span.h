// What a recorded step is made of: spans of time in lanes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "comm/communicator.h"

namespace tessera {

// What goes on side by side in a rank. A lane's spans do not overlap.
enum class Lane : std::uint8_t {
  compute,     // the rank's own thread; on a GPU its queue
  gather,      // collectives that bring parameters
  reduce,      // collectives that sum gradients
  copy,        // this rank's share of the parameters on its way into a collective's memory
  copy_back,   // summed gradients on their way to a file
  save,        // checkpoints
  all_reduce,  // of HYBRID_*: sums that pass between copies
};
inline constexpr int lane_count = 7;
std::string_view name_of(Lane lane);

enum class SpanKind : std::uint8_t {
  // The compute lane is in one of these at any time of a step, so they add up to it.
  forward,    // of a unit; of the root, what is in no other unit
  recompute,  // a forward again, in the middle of a backward
  backward,
  optimizer,      // with the norm of the gradients
  data,           // standing still for a batch
  other,          // whatever else the program does
  schedule,       // the sharding's own decisions, and whom the processor served meanwhile
  wait,           // standing still for a collective: exposed communication
  exchange,       // small messages: norms, what ranks tell each other once a step
  communication,  // a collective on this thread (TESSERA_SERIAL_STREAMS=1)
  // The other lanes.
  all_gather,
  reduce_scatter,
  all_reduce,
  copy,
  save,
};
std::string_view name_of(SpanKind kind);

// What a wait was for.
enum class Exposed : std::uint8_t { gather_forward, gather_backward, reduce, all_reduce, other };
inline constexpr int exposed_count = 5;
std::string_view name_of(Exposed exposed);

// A moment is nanoseconds of CLOCK_MONOTONIC, which ranks of one host share.
struct Span {
  SpanKind kind = SpanKind::other;
  Lane lane = Lane::compute;
  comm::Phase phase = comm::Phase::other;  // that a collective is for
  Exposed exposed = Exposed::other;        // of a wait
  std::int32_t unit = 0;                   // index; 0 is the root
  std::uint64_t bytes = 0;                 // that reach this rank from others; that are copied
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] double seconds() const { return static_cast<double>(end - begin) * 1e-9; }
};

}  // namespace tessera
