// The calling thread's state, and the checks that every cuda* function begins with.
#include "emulator/cuda/api.h"

#include "emulator/runtime/settings.h"

namespace tessera::emulator::api {

HostThread& this_thread() {
  static thread_local HostThread thread;
  return thread;
}

void require_working_device() {
  if (settings().devices == 0) throw Failure{cudaErrorNoDevice};
  require(!this_thread().in_host_function, cudaErrorNotPermitted,
          "a host function must not call CUDA");
  const cudaError_t failure = runtime().failure(this_thread().device);
  if (failure != cudaSuccess) throw Failure{failure};
}

std::shared_ptr<Stream> stream_of(cudaStream_t handle) {
  require(handle != cudaStreamPerThread, cudaErrorNotSupported,
          "the emulator has no default streams of threads");
  std::shared_ptr<Stream> stream = runtime().find(handle, this_thread().device);
  require(stream != nullptr, cudaErrorInvalidResourceHandle, "{} is not a live stream",
          static_cast<const void*>(handle));
  runtime().order_with_default(*stream);
  return stream;
}

}  // namespace tessera::emulator::api
