// Loads cuDNN. The file has no kernels, but the device's compiler compiles it: only code from that
// compiler may look for the device's library.
#include "kernels/cuda/cudnn/cudnn_library.h"

#include <dlfcn.h>

#include <atomic>
#include <sstream>
#include <utility>

namespace tessera::kernels::cuda {
namespace {

#if defined(__CUDACC__)
CudnnLibrary cudnn_of_the_device() {
  return load_cudnn({"libcudnn.so.9"});
}
#else
CudnnLibrary cudnn_of_the_device() {
  return {nullptr, "this build's devices are emulated"};
}
#endif

std::atomic<const CudnnLibrary*>& cudnn_replacement() {
  static std::atomic<const CudnnLibrary*> library{nullptr};
  return library;
}

// Adds the error that dlopen or dlsym just reported.
void note_cudnn_problem(std::string& problem, const char* name) {
  const char* reason = dlerror();
  if (!problem.empty()) problem += "; ";
  problem += reason != nullptr ? reason : name;
}

template <class Function>
bool find_function(void* object, const char* name, Function& function, std::string& problem) {
  function = reinterpret_cast<Function>(dlsym(object, name));
  if (function == nullptr) note_cudnn_problem(problem, name);
  return function != nullptr;
}

bool find_functions(void* object, Cudnn& cudnn, std::string& problem) {
#define TESSERA_CUDNN_FIND(name) find_function(object, #name, cudnn.name, problem)
  return TESSERA_CUDNN_FIND(cudnnGetVersion) && TESSERA_CUDNN_FIND(cudnnGetErrorString) &&
         TESSERA_CUDNN_FIND(cudnnGetLastErrorString) && TESSERA_CUDNN_FIND(cudnnCreate) &&
         TESSERA_CUDNN_FIND(cudnnDestroy) && TESSERA_CUDNN_FIND(cudnnSetStream) &&
         TESSERA_CUDNN_FIND(cudnnBackendCreateDescriptor) &&
         TESSERA_CUDNN_FIND(cudnnBackendDestroyDescriptor) &&
         TESSERA_CUDNN_FIND(cudnnBackendSetAttribute) &&
         TESSERA_CUDNN_FIND(cudnnBackendGetAttribute) && TESSERA_CUDNN_FIND(cudnnBackendFinalize) &&
         TESSERA_CUDNN_FIND(cudnnBackendExecute);
#undef TESSERA_CUDNN_FIND
}

std::string version_text(std::size_t version) {
  std::ostringstream text;
  text << version / 10000 << '.' << version / 100 % 100 << '.' << version % 100;
  return text.str();
}

std::string file_of(const Cudnn& cudnn) {
  Dl_info place{};
  if (dladdr(reinterpret_cast<void*>(cudnn.cudnnCreate), &place) == 0) return {};
  return place.dli_fname;
}

}  // namespace

CudnnLibrary cudnn_library_of(const Cudnn& functions, const std::string& file) {
  CudnnLibrary library;
  const std::size_t version = functions.cudnnGetVersion();
  library.name = "cuDNN " + version_text(version) + " (" + file + ')';
  if (version < oldest_cudnn) {
    library.problem = library.name + " is older than " + version_text(oldest_cudnn);
  } else {
    library.functions = std::make_shared<const Cudnn>(functions);
  }
  return library;
}

CudnnLibrary load_cudnn(std::initializer_list<const char*> names) {
  CudnnLibrary library;
  for (const char* name : names) {
    void* const object = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr) {
      note_cudnn_problem(library.problem, name);
      continue;
    }
    Cudnn cudnn;
    if (!find_functions(object, cudnn, library.problem)) continue;
    CudnnLibrary found = cudnn_library_of(cudnn, file_of(cudnn));
    if (found.functions != nullptr) return found;
    if (!library.problem.empty()) library.problem += "; ";
    library.problem += found.problem;
  }
  return library;
}

const CudnnLibrary& cudnn_library() {
  if (const CudnnLibrary* const library = cudnn_replacement().load(std::memory_order_acquire)) {
    return *library;
  }
  static const CudnnLibrary loaded = cudnn_of_the_device();
  return loaded;
}

CudnnReplacement::CudnnReplacement(CudnnLibrary library)
    : library_(std::move(library)), before_(cudnn_replacement().exchange(&library_)) {}

CudnnReplacement::~CudnnReplacement() {
  cudnn_replacement().store(before_, std::memory_order_release);
}

}  // namespace tessera::kernels::cuda
