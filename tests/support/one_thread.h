// Tiny tensors gain nothing from a second thread, and on a busy machine they wait for it.
#pragma once

#include "base/parallel.h"

namespace tessera::testing {

// One compute thread for a scope.
class OneThread {
 public:
  OneThread() : previous_(compute_threads()) { set_compute_threads(1); }
  ~OneThread() { set_compute_threads(previous_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int previous_;
};

}  // namespace tessera::testing
