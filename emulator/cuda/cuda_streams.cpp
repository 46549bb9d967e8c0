// The cuda* functions of streams.
#include <algorithm>

#include "emulator/cuda/api.h"
#include "emulator/cuda/hooks.h"

namespace api = tessera::emulator::api;
using tessera::emulator::runtime;
using tessera::emulator::Stream;

namespace {

// A smaller number is a higher priority. The range is an H100's.
constexpr int lowest_priority = 0;
constexpr int highest_priority = -5;

// A host function is work of the stream and must not call CUDA.
void run_host_function(cudaHostFn_t function, void* argument) {
  bool& inside = api::this_thread().in_host_function;
  inside = true;
  function(argument);
  inside = false;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, lowest_priority);
}

// Only recorded: the order of the executors shows what the streams' order permits, with or without
// priorities.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return api::call("cudaStreamCreateWithPriority", [&] {
    api::require(stream != nullptr, cudaErrorInvalidValue, "null");
    api::require(flags == cudaStreamDefault || flags == cudaStreamNonBlocking,
                 cudaErrorInvalidValue, "flags {:#x}", flags);
    // The driver moves a priority outside the range to its nearest end.
    const int used = std::clamp(priority, highest_priority, lowest_priority);
    *stream = runtime().create_stream({api::this_thread().device, flags, used});
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  return api::call("cudaDeviceGetStreamPriorityRange", [&] {
    if (lowest != nullptr) *lowest = lowest_priority;
    if (highest != nullptr) *highest = highest_priority;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return api::call("cudaStreamGetPriority", [&] {
    api::require(priority != nullptr, cudaErrorInvalidValue, "null");
    *priority = api::stream_of(handle)->options().priority;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return api::call("cudaStreamDestroy", [&] {
    api::require(runtime().destroy_stream(stream), cudaErrorInvalidResourceHandle,
                 "{} is not a live stream that was created", static_cast<const void*>(stream));
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return api::call("cudaStreamSynchronize", [&] {
    const std::shared_ptr<Stream> stream = api::stream_of(handle);
    runtime().wait(stream->record());
    api::require_working_device();  // earlier work may have failed
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  return api::call("cudaLaunchHostFunc", [&] {
    api::require(function != nullptr, cudaErrorInvalidValue, "null");
    const std::shared_ptr<Stream> stream = api::stream_of(handle);
    stream->enqueue("host function", {}, [=] { run_host_function(function, argument); });
    // A host thread may wait for the function's effect by other means, e.g. a condition variable.
    runtime().executor().run_soon(*stream);
  });
}

void tessera_emulator_name_stream(void* handle, const char* name) {
  (void)api::call("tessera_emulator_name_stream", [&] {
    api::stream_of(static_cast<cudaStream_t>(handle))->set_name(runtime().intern(name));
  });
}

void tessera_emulator_host_access(const void* memory, std::size_t bytes, bool write,
                                  const char* what) {
  runtime().checker().host_access({memory, bytes, write}, what);
}

}  // extern "C"
