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

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return api::call("cudaStreamCreateWithFlags", [&] {
    api::require(stream != nullptr, cudaErrorInvalidValue, "null");
    api::require(flags == cudaStreamDefault || flags == cudaStreamNonBlocking,
                 cudaErrorInvalidValue, "flags {:#x}", flags);
    *stream = runtime().create_stream({api::this_thread().device, flags});
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
