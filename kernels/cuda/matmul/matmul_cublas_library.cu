// Loads cuBLASLt. The file has no kernels, but the device's compiler compiles it: only code from
// that compiler may look for the device's library.
#include "kernels/cuda/matmul/matmul_cublas_library.h"

#include <dlfcn.h>

#include <atomic>
#include <sstream>
#include <utility>

namespace tessera::kernels::cuda {
namespace {

#if defined(__CUDACC__)
CublasLtLibrary library_of_the_device() {
  return load_cublas_lt({"libcublasLt.so.13", "libcublasLt.so.12"});
}
#else
CublasLtLibrary library_of_the_device() {
  return {nullptr, "this build's devices are emulated"};
}
#endif

std::atomic<const CublasLtLibrary*>& replacement() {
  static std::atomic<const CublasLtLibrary*> library{nullptr};
  return library;
}

// Adds the error that dlopen or dlsym just reported.
void note_problem(std::string& problem, const char* name) {
  const char* reason = dlerror();
  if (!problem.empty()) problem += "; ";
  problem += reason != nullptr ? reason : name;
}

// cuBLAS encodes 13.1.0 as 130100.
std::string name_of(void* object, const CublasLt& functions) {
  std::ostringstream name;
  name << "cuBLASLt";
  using Version = std::size_t (*)();
  if (const auto version = reinterpret_cast<Version>(dlsym(object, "cublasLtGetVersion"))) {
    const std::size_t number = version();
    name << ' ' << number / 10000 << '.' << number / 100 % 100 << '.' << number % 100;
  }
  Dl_info place{};
  if (dladdr(reinterpret_cast<void*>(functions.cublasLtCreate), &place) != 0) {
    name << " (" << place.dli_fname << ')';
  }
  return name.str();
}

}  // namespace

CublasLtLibrary load_cublas_lt(std::initializer_list<const char*> names) {
  CublasLtLibrary library;
  for (const char* name : names) {
    void* const object = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr) {
      note_problem(library.problem, name);
      continue;
    }
    auto functions = std::make_shared<CublasLt>();
    bool complete = true;
#define TESSERA_CUBLAS_LT_FIND(function)                                                           \
  functions->function = reinterpret_cast<decltype(functions->function)>(dlsym(object, #function)); \
  if (complete && functions->function == nullptr) {                                                \
    note_problem(library.problem, #function);                                                      \
    complete = false;                                                                              \
  }
    TESSERA_CUBLAS_LT(TESSERA_CUBLAS_LT_FIND)
#undef TESSERA_CUBLAS_LT_FIND
    if (complete) {
      library.problem.clear();
      library.name = name_of(object, *functions);
      library.functions = std::move(functions);
      return library;
    }
  }
  return library;
}

const CublasLtLibrary& cublas_lt_library() {
  if (const CublasLtLibrary* const library = replacement().load(std::memory_order_acquire)) {
    return *library;
  }
  static const CublasLtLibrary loaded = library_of_the_device();
  return loaded;
}

CublasLtReplacement::CublasLtReplacement(CublasLtLibrary library)
    : library_(std::move(library)), before_(replacement().exchange(&library_)) {}

CublasLtReplacement::~CublasLtReplacement() {
  replacement().store(before_, std::memory_order_release);
}

}  // namespace tessera::kernels::cuda
