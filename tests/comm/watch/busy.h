// A busy rank, for tests that expect no deadlock report.
#pragma once

#include <chrono>

namespace tessera::testing {

inline void compute_for(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  volatile double sum = 1;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 1000; ++i) sum = sum * 1.0000001 + 0.5;
  }
}

}  // namespace tessera::testing
