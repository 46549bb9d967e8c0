// Replaces NVTX's header of this name: the emulated runtime takes the names that profilers would
// show and uses them in its reports.
#pragma once

#include <cuda_runtime_api.h>

// Defined in the emulated runtime (emulator/runtime); copies the name.
extern "C" void tessera_emulator_name_stream(void* stream, const char* name);

inline void nvtxNameCudaStreamA(cudaStream_t stream, const char* name) {
  tessera_emulator_name_stream(stream, name);
}
