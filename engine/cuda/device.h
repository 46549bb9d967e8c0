// The GPUs of this machine, and the one that a thread is bound to.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace tessera::cuda {

struct Availability {
  int count = 0;
  std::string reason;   // why it is 0; else empty
  bool driver = false;  // the machine has an NVIDIA driver, whatever it can do
};
// Looked up once, and CUDA's first call: from there on kernels are loaded with the device's context
// (CUDA_MODULE_LOADING, unless the environment sets it). Never throws: whatever CUDA answers but
// "there are some" means that there is none.
const Availability& availability();
// What CUDA's answers mean: cudaGetDeviceCount's, and cudaDriverGetVersion's (0: no driver).
Availability availability_from(cudaError_t error, int count, int driver);

// Of a device that there is; looked up once.
const cudaDeviceProp& properties(int device);

// Makes the device the calling thread's; cheap when it is already. Everything here calls it before
// it calls CUDA, so that a thread may use several devices.
void bind_thread(int device);

}  // namespace tessera::cuda
