// The GPUs of this host, and the one to which a thread is bound.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace tessera::cuda {

struct Availability {
  int count = 0;
  std::string reason;   // why the count is 0; else empty
  bool driver = false;  // the host has an NVIDIA driver, usable or not
};
// Looked up once, in CUDA's first call: from then on kernels are loaded with the device's context
// (CUDA_MODULE_LOADING, unless the environment sets it). Never throws: any failure counts as no
// GPU.
const Availability& availability();
// Interprets the results of cudaGetDeviceCount and cudaDriverGetVersion (0: no driver).
Availability availability_from(cudaError_t error, int count, int driver);

// The properties of an existing device; looked up once.
const cudaDeviceProp& properties(int device);

// Makes the device current on the calling thread; cheap if it is already. All code here calls it
// before it calls CUDA, so a thread may use several devices.
void bind_thread(int device);

}  // namespace tessera::cuda
