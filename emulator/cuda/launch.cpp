// Turns a launch into an operation on a stream.
#include "emulator/runtime/launch.h"

#include "emulator/cuda/api.h"
#include "emulator/scheduler/grid.h"

namespace tessera::emulator {
namespace {

// A GPU might fault, or read the allocation next to it unnoticed.
void require_live(const LaunchRecord& record) {
  for (const Access& access : record.accesses) {
    api::require(runtime().memory().find(access.memory, access.bytes).has_value(),
                 cudaErrorIllegalAddress,
                 "kernel {} {} {} bytes at {}, not all in a live allocation", record.kernel,
                 access.write ? "writes" : "reads", access.bytes, access.memory);
  }
}

}  // namespace

cudaError_t enqueue_launch(cudaStream_t handle, LaunchRecord record,
                           std::function<void()> thread_body) {
  return api::call("launch", [&] {
    const cudaError_t configuration =
        check_configuration(record.grid, record.block, record.shared_bytes);
    if (configuration != cudaSuccess) throw api::Failure{configuration};
    const std::shared_ptr<Stream> stream = api::stream_of(handle);
    api::require(stream->options().device == api::this_thread().device,
                 cudaErrorInvalidResourceHandle,
                 "kernel {}: stream {} is of device {}, the current device is {}", record.kernel,
                 *stream->name(), stream->options().device, api::this_thread().device);
    require_live(record);
    stream->enqueue(record.kernel, record.accesses,
                    [grid = record.grid, block = record.block, shared = record.shared_bytes,
                     kernel = record.kernel, body = std::move(thread_body)] {
                      run_grid(grid, block, shared, kernel, body);
                    });
  });
}

}  // namespace tessera::emulator
