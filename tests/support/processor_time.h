// Processor time: what a test may bound where a wall clock would measure the other work of the
// machine.
#pragma once

#include <sys/resource.h>

namespace tessera::testing {

inline double processor_seconds_of(int who) {
  rusage use{};
  (void)getrusage(who, &use);  // fails for an unknown `who` only
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// Seconds that this process, or the children that it has waited for, computed.
inline double own_processor_seconds() {
  return processor_seconds_of(RUSAGE_SELF);
}
inline double children_processor_seconds() {
  return processor_seconds_of(RUSAGE_CHILDREN);
}

}  // namespace tessera::testing
