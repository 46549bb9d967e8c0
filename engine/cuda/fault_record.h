// Where a queue's kernels report bad data, as the host sees it.
#pragma once

#include <memory>

#include "kernels/cuda/device/context.h"

namespace tessera::cuda {

// In page-locked memory that the device writes directly: to look costs no copy. May be read when
// the queue has been waited for.
class FaultRecord {
 public:
  FaultRecord();
  // What kernels are given.
  [[nodiscard]] kernels::cuda::Fault* address() const { return fault_; }
  // Throws Error(data) with the CPU kernels' words when something was reported.
  void check() const;
  // The same, and forgets the report. Nothing may run on the queue.
  void check_and_clear();

 private:
  std::shared_ptr<std::byte> memory_;
  kernels::cuda::Fault* fault_;
};

}  // namespace tessera::cuda
