// A step whose memory has the same places each time.
#pragma once

#include <memory>

#include "engine/device/device.h"
#include "engine/device/memory.h"

namespace tessera {

// A training step of the calling thread, from the first forward to the last use of its gradients:
//
//   for (...) {
//     const ts::MemoryStep step(context.device());
//     loss(batch).backward();
//     ...
//   }
//
// The thread's allocations on the device are recorded. After two steps with the same sizes in the
// same order, each block of a later step gets a fixed place in one range of memory
// (engine/places/step_places.h): it has the same address in every step, and no memory is asked from
// the system or given back. What outlives the step is not placed, and a step that allocates
// otherwise is served by the pool. Declare it before the tensors of the step, so that they end
// first; one that lives longer keeps its place. ts::Trainer does this itself. Inside another
// MemoryStep it has no effect.
class MemoryStep {
 public:
  explicit MemoryStep(Device device);
  ~MemoryStep();
  MemoryStep(const MemoryStep&) = delete;
  MemoryStep& operator=(const MemoryStep&) = delete;

 private:
  std::shared_ptr<MemoryPool> pool_;  // null inside another step
  int exceptions_;                    // in flight at the beginning
};

}  // namespace tessera
