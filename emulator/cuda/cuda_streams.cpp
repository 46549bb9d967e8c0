// The cuda* functions of streams.
#include "emulator/cuda/api.h"
#include "emulator/cuda/hooks.h"

namespace api = tessera::emulator::api;
using tessera::emulator::runtime;
using tessera::emulator::Stream;

namespace {

// A host function is work of the stream and must not call CUDA.
void run_host_function(cudaHostFn_t function, void* argument) {
  bool& inside = api::this_thread().in_host_function;
  inside = true;
  function(argument);
  inside = false;
}

cudaError_t create(const char* function, cudaStream_t* stream, unsigned flags, int priority) {
  return api::call(function, [&] {
    api::require(stream != nullptr, cudaErrorInvalidValue, "null");
    api::require(flags == cudaStreamDefault || flags == cudaStreamNonBlocking,
                 cudaErrorInvalidValue, "flags {:#x}", flags);
    *stream = runtime().create_stream({api::this_thread().device, flags, priority});
  });
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return create("cudaStreamCreate", stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create("cudaStreamCreateWithFlags", stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  int least = 0;
  int greatest = 0;
  (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
  // As in CUDA, a priority outside the range is clamped.
  return create("cudaStreamCreateWithPriority", stream, flags,
                std::min(std::max(priority, greatest), least));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api::call("cudaDeviceGetStreamPriorityRange", [&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return api::call("cudaStreamDestroy", [&] {
    api::require(runtime().destroy_stream(stream), cudaErrorInvalidResourceHandle,
                 "{} is not a live stream that was created", static_cast<const void*>(stream));
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return api::call("cudaStreamGetFlags", [&] { *flags = api::stream_of(stream)->options().flags; });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return api::call("cudaStreamGetPriority",
                   [&] { *priority = api::stream_of(stream)->options().priority; });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return api::call("cudaStreamSynchronize", [&] {
    const std::shared_ptr<Stream> stream = api::stream_of(handle);
    runtime().wait(stream->record());
    api::require_working_device();  // earlier work may have failed
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return api::call("cudaStreamQuery", [&] {
    const std::shared_ptr<Stream> stream = api::stream_of(handle);
    if (!stream->is_idle()) {
      runtime().executor().poll();
      throw api::Failure{cudaErrorNotReady};
    }
    runtime().wait(stream->record());  // the host now knows the stream's work
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
