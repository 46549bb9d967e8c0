// Shared by the cuda* functions: the calling thread's state, errors with texts, and streams by
// handle.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "emulator/runtime/report.h"
#include "emulator/runtime/runtime.h"

namespace tessera::emulator::api {

struct HostThread {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  bool in_host_function = false;
};
HostThread& this_thread();

// The failure of a cuda* function. An empty text: the code is enough.
struct Failure {
  cudaError_t error;
  std::string text = {};
};

template <class... Arguments>
[[noreturn]] void fail(cudaError_t error, fmt::format_string<Arguments...> format,
                       Arguments&&... arguments) {
  throw Failure{error, fmt::format(format, std::forward<Arguments>(arguments)...)};
}

template <class... Arguments>
void require(bool condition, cudaError_t error, fmt::format_string<Arguments...> format,
             Arguments&&... arguments) {
  if (!condition) fail(error, format, std::forward<Arguments>(arguments)...);
}

// Throws where no call is possible: there is no device, the caller is a host function, or the
// current device has failed.
void require_working_device();

// Runs the body of a cuda* function. A failure is printed, kept for cudaGetLastError and returned.
template <class Body>
cudaError_t call_anywhere(const char* function, Body&& body) {
  try {
    body();
    return cudaSuccess;
  } catch (const Failure& failure) {
    if (!failure.text.empty()) print_line("{}: {}", function, failure.text);
    return this_thread().last_error = failure.error;
  } catch (const std::bad_alloc&) {
    print_line("{}: the host is out of memory", function);
    return this_thread().last_error = cudaErrorMemoryAllocation;
  }
}

// The same for a function that needs a working device.
template <class Body>
cudaError_t call(const char* function, Body&& body) {
  return call_anywhere(function, [&] {
    require_working_device();
    body();
  });
}

// The stream of a handle, ordered with the default stream, so that the next addition may follow.
// cudaErrorInvalidResourceHandle if there is no such stream (any more).
std::shared_ptr<Stream> stream_of(cudaStream_t handle);

}  // namespace tessera::emulator::api
