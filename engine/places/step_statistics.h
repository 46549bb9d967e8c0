// Statistics of steps whose blocks have places (engine/places/step_places.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

// The first allocation that made a step leave its places.
struct StepDifference {
  std::uint64_t step = 0;      // counted from 1, all steps of the pool
  std::uint64_t position = 0;  // of the allocation in the step
  std::uint64_t wanted = 0;    // its bytes; 0: the step ended before
  std::uint64_t recorded = 0;  // the bytes of the recorded allocation; 0: there was none
};

struct StepStatistics {
  std::uint64_t steps = 0;
  std::uint64_t placed = 0;     // steps whose allocations were as recorded
  std::uint64_t different = 0;  // steps that left their places; the others only recorded
  std::uint64_t displaced = 0;  // allocations of placed steps whose place was still in use
  StepDifference last;          // of the last different step
};

// The memory of a step as recorded.
struct StepNeeds {
  std::size_t placed_bytes = 0;   // the range of all places
  std::size_t live_bytes = 0;     // largest sum of placed blocks that live at the same time
  std::size_t outside_bytes = 0;  // blocks from before the step, and blocks that outlive it
};

}  // namespace tessera
