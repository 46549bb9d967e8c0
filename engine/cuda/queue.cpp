// Copies and waits on a CUDA stream.
#include "engine/cuda/queue.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "engine/cuda/device.h"
#include "kernels/cuda/device/error.h"

namespace tessera::cuda {

kernels::Queue Queue::native() {
  bind_thread(context_.device);  // a launch works only from a thread bound to the device
  return {static_cast<kernels::cuda::Context*>(&context_)};
}

void Queue::wait(const PointHandle& point) {
  if (!point) return;
  const auto* event_point = dynamic_cast<const Point*>(point.get());
  if (event_point == nullptr) {
    point->synchronize();  // another kind of device: the thread waits
    return;
  }
  bind_thread(context_.device);
  TESSERA_CUDA(cudaStreamWaitEvent(context_.stream, event_point->event(), 0));
}

void Queue::enqueue_copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return;
  bind_thread(context_.device);
  TESSERA_CUDA(cudaMemcpyAsync(to, from, bytes, kind, context_.stream));
}

void Queue::copy(void* to, const void* from, std::size_t bytes) {
  enqueue_copy(to, from, bytes, cudaMemcpyDeviceToDevice);
}

void Queue::zero(void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  bind_thread(context_.device);
  TESSERA_CUDA(cudaMemsetAsync(memory, 0, bytes, context_.stream));
}

// Copies through the staging ring, so that the thread goes on while the device is busy.
void Queue::copy_from_host(void* to, const void* from, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t part = std::min(bytes - done, StagingRing::largest_part);
    std::byte* staged = staging_.take(part);
    std::memcpy(staged, static_cast<const std::byte*>(from) + done, part);
    enqueue_copy(static_cast<std::byte*>(to) + done, staged, part, cudaMemcpyHostToDevice);
    staging_.in_use_until(record());
    done += part;
  }
}

void Queue::copy_to_host(void* to, const void* from, std::size_t bytes) {
  enqueue_copy(to, from, bytes, cudaMemcpyDeviceToHost);
  synchronize();
}

void Queue::enqueue_copy_from_pinned(void* to, const void* from, std::size_t bytes) {
  enqueue_copy(to, from, bytes, cudaMemcpyHostToDevice);
}

void Queue::enqueue_copy_to_pinned(void* to, const void* from, std::size_t bytes) {
  enqueue_copy(to, from, bytes, cudaMemcpyDeviceToHost);
}

void Queue::run_own(const OwnWork& work, const std::function<void(void* stream)>& enqueue) {
  enqueue(context_.stream);
  const cudaError_t error = cudaGetLastError();
  TESSERA_CHECK(error == cudaSuccess, ErrorCode::runtime,
                "{}: its launch on {} failed: {}; its kernel's grid, block and shared memory must "
                "be what the device allows",
                work.name, device().to_string(), cudaGetErrorString(error));
}

}  // namespace tessera::cuda
