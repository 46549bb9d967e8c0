// The part of a step that the calling thread computes. Devices that log work read it; the autograd
// engine, which is a layer above devices, sets it.
#pragma once

namespace tessera {

struct Pass {
  bool backward = false;    // a backward runs
  bool second_run = false;  // a region's forward runs again to recompute values that were not kept
};

inline Pass& current_pass() {
  thread_local Pass pass;
  return pass;
}

}  // namespace tessera
