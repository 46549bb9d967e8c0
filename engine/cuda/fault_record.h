// The record in which a queue's kernels report bad data to the host.
#pragma once

#include <memory>

#include "kernels/cuda/device/context.h"

namespace tessera::cuda {

// It is in page-locked memory that the device writes directly, so reading it needs no copy. Read it
// after the queue has been waited for.
class FaultRecord {
 public:
  FaultRecord();
  // The address that kernels get.
  [[nodiscard]] kernels::cuda::Fault* address() const { return fault_; }
  // Throws Error(data) with the message of the CPU kernels if a kernel reported a fault.
  void check() const;
  // Like check(), and clears the report. No work may run on the queue.
  void check_and_clear();

 private:
  std::shared_ptr<std::byte> memory_;
  kernels::cuda::Fault* fault_;
};

}  // namespace tessera::cuda
