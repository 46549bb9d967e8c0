// cuDNN as a table of functions. The library is loaded when attention first needs it, so the engine
// also runs without it, on its own kernels. Its headers are not needed: what is used of them is
// declared here, with cuDNN's own values (cudnn_graph.h of cuDNN 9).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

namespace tessera::kernels::cuda {

// Handles and descriptors are pointers to opaque structures; enumerations have the size of an int.
using CudnnHandle = void*;
using CudnnDescriptor = void*;
using CudnnStatus = int;  // 0: success; 3000 to 3999: not supported

// The functions that attention uses, under cuDNN's own names.
struct Cudnn {
  std::size_t (*cudnnGetVersion)() = nullptr;
  const char* (*cudnnGetErrorString)(CudnnStatus) = nullptr;
  void (*cudnnGetLastErrorString)(char* message, std::size_t size) = nullptr;
  CudnnStatus (*cudnnCreate)(CudnnHandle*) = nullptr;
  CudnnStatus (*cudnnDestroy)(CudnnHandle) = nullptr;
  CudnnStatus (*cudnnSetStream)(CudnnHandle, cudaStream_t) = nullptr;
  CudnnStatus (*cudnnBackendCreateDescriptor)(int type, CudnnDescriptor*) = nullptr;
  CudnnStatus (*cudnnBackendDestroyDescriptor)(CudnnDescriptor) = nullptr;
  CudnnStatus (*cudnnBackendSetAttribute)(CudnnDescriptor, int attribute, int type,
                                          std::int64_t count, const void* values) = nullptr;
  CudnnStatus (*cudnnBackendGetAttribute)(CudnnDescriptor, int attribute, int type,
                                          std::int64_t requested, std::int64_t* count,
                                          void* values) = nullptr;
  CudnnStatus (*cudnnBackendFinalize)(CudnnDescriptor) = nullptr;
  CudnnStatus (*cudnnBackendExecute)(CudnnHandle, CudnnDescriptor plan,
                                     CudnnDescriptor variant_pack) = nullptr;
};

// The oldest version that is used: earlier ones need workarounds for lengths that are not a
// multiple of 128 (up to 9.15), and some have a wrong backward (9.10.0).
inline constexpr std::size_t oldest_cudnn = 91600;  // cuDNN encodes 9.16.0 as 91600

struct CudnnLibrary {
  std::shared_ptr<const Cudnn> functions;  // null: not available
  std::string problem;                     // the reason if it is not available
  std::string name = "cuDNN";              // with its version and file: "cuDNN 9.19.0 (...)"
};

// The library of a table of functions that are in this file; without functions if the version is
// older than oldest_cudnn.
CudnnLibrary cudnn_library_of(const Cudnn& functions, const std::string& file);

// Tries these shared objects in turn; if all fail, or are older than oldest_cudnn, returns the
// reasons. A loaded library stays loaded.
CudnnLibrary load_cudnn(std::initializer_list<const char*> names);

// The process's library: libcudnn.so.9, loaded at the first call. Emulated devices have none: the
// real library would follow pointers that only a real device has.
const CudnnLibrary& cudnn_library();

// For tests: during its lifetime, cudnn_library() returns this one. All functions must be set and
// outlive every thread that used attention (a thread destroys its handles and descriptors through
// the table when it ends). Make and destroy it while no attention is being started; one at a time
// or nested.
class CudnnReplacement {
 public:
  explicit CudnnReplacement(CudnnLibrary library);
  ~CudnnReplacement();
  CudnnReplacement(const CudnnReplacement&) = delete;
  CudnnReplacement& operator=(const CudnnReplacement&) = delete;

 private:
  CudnnLibrary library_;
  const CudnnLibrary* before_;
};

}  // namespace tessera::kernels::cuda
