// cuBLASLt as a table of functions. The library is loaded when a product first needs it, so the
// engine also runs without it, on its own kernels.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>

namespace tessera::kernels::cuda {

// The functions that matmul uses, under cuBLASLt's own names.
#define TESSERA_CUBLAS_LT(X)              \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtGetStatusName)                \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatrixLayoutSetAttribute)     \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulAlgoCheck)              \
  X(cublasLtMatmul)

struct CublasLt {
#define TESSERA_CUBLAS_LT_MEMBER(name) decltype(&::name) name = nullptr;
  TESSERA_CUBLAS_LT(TESSERA_CUBLAS_LT_MEMBER)
#undef TESSERA_CUBLAS_LT_MEMBER
};

struct CublasLtLibrary {
  std::shared_ptr<const CublasLt> functions;  // null: not available
  std::string problem;                        // the reason if it is not available
  std::string name = "cuBLASLt";              // with its version and file: "cuBLASLt 13.1.0 (...)"
};

// Tries these shared objects in turn; if all fail, returns the reasons. A loaded library stays
// loaded.
CublasLtLibrary load_cublas_lt(std::initializer_list<const char*> names);

// The process's library: libcublasLt.so.13, or .12, loaded at the first call. Emulated devices have
// none: the real library would follow pointers that only a real device has.
const CublasLtLibrary& cublas_lt_library();

// For tests: during its lifetime, cublas_lt_library() returns this one. An emulated cuBLASLt fills
// a CublasLt with functions of the same types. All must be set and outlive every thread that
// multiplied (a thread destroys its handles and descriptors through the table when it ends). Make
// and destroy it while no product is being started; one at a time or nested.
class CublasLtReplacement {
 public:
  explicit CublasLtReplacement(CublasLtLibrary library);
  explicit CublasLtReplacement(const CublasLt& functions)
      : CublasLtReplacement(CublasLtLibrary{std::make_shared<const CublasLt>(functions), {}}) {}
  ~CublasLtReplacement();
  CublasLtReplacement(const CublasLtReplacement&) = delete;
  CublasLtReplacement& operator=(const CublasLtReplacement&) = delete;

 private:
  CublasLtLibrary library_;
  const CublasLtLibrary* before_;
};

}  // namespace tessera::kernels::cuda
