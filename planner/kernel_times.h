// Times of the kernels that a thread launches on the CPU.
#pragma once

#include <vector>

#include "engine/device/launch.h"
#include "engine/planned/kernel_work.h"

namespace tessera::planner {

struct TimedKernel {
  KernelWork work;
  double seconds = 0;
};

// Collects the kernels that the calling thread launches, as long as it lives. One per thread at a
// time.
class KernelTimes {
 public:
  KernelTimes();
  ~KernelTimes();
  KernelTimes(const KernelTimes&) = delete;
  KernelTimes& operator=(const KernelTimes&) = delete;

  [[nodiscard]] const std::vector<TimedKernel>& times() const { return times_; }
  void clear() { times_.clear(); }
  void add(const KernelWork& work, double seconds) { times_.push_back({work, seconds}); }

 private:
  std::vector<TimedKernel> times_;
  KernelTableGuard guard_;
};

}  // namespace tessera::planner
