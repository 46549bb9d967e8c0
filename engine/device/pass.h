// Which part of a step the calling thread computes. Devices that log work read it; the autograd
// engine, which is built upon devices, sets it.
#pragma once

namespace tessera {

struct Pass {
  bool backward = false;    // a backward runs
  bool second_run = false;  // a region's forward runs again to recompute what was not kept
};

inline Pass& current_pass() {
  thread_local Pass pass;
  return pass;
}

}  // namespace tessera
