// The position of the thread in its step.
#include "sharding/profiler/step_position.h"

namespace tessera {
namespace {
thread_local StepPosition thread_step_position;
}

StepPosition step_position() {
  return thread_step_position;
}

void set_step_position(StepPosition position) {
  thread_step_position = position;
}

}  // namespace tessera
