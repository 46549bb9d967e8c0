// The target of a kernels::Queue on a GPU: the stream, and resources for its launches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/registry.h"

namespace tessera::kernels::cuda {

// The first bad value that a kernel found in its data. Kernels cannot throw: they report here
// (report_fault in fault.h), and the queue's owner throws Error(data) at its next wait.
struct Fault {
  enum Kind : std::uint32_t { none, embedding_id, cross_entropy_target, axis_id };
  std::uint32_t kind = none;
  std::uint32_t claimed = 0;  // by the first thread that reports
  std::int64_t position = 0;  // in the ids or targets
  std::int64_t value = 0;
  std::int64_t limit = 0;  // values below it are good
};

// One queue of one device. One host thread at a time may use it. The engine's queue
// (engine/cuda/queue.h) owns it; tests make their own.
class Context {
 public:
  virtual ~Context() = default;

  // Device memory for the kernels of one op, 256-byte aligned, contents undefined. Valid until the
  // next call of scratch() on this context. Launches in stream order may reuse it, so an op calls
  // it once and splits the memory. Throws Error(out_of_memory).
  virtual void* scratch(std::size_t bytes) = 0;

  cudaStream_t stream = nullptr;
  int device = 0;
  int multiprocessors = 1;
  int compute_capability = 0;                       // 90 for 9.0
  std::size_t shared_memory_of_a_block = 48 << 10;  // the most that a block may request
  ProductCounts products;
  Fault* fault = nullptr;  // page-locked host or device memory: kernels can write either
  AttentionCounts attention;
};

inline Context& context_of(Queue queue) {
  return *static_cast<Context*>(queue.native);
}

}  // namespace tessera::kernels::cuda
