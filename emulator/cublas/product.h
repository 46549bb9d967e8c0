// A product as the emulated cuBLASLt computes it.
#pragma once

#include "emulator/cublas/descriptors.h"

namespace tessera::emulator::cublas {

// d = alpha * op(a) * op(b) + beta * c (+ bias), with copies of the descriptors: the caller may
// change or destroy them at once.
struct Product {
  Operation operation;
  Layout a_layout, b_layout, c_layout, d_layout;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
  double alpha = 1;
  double beta = 0;

  [[nodiscard]] std::int64_t depth() const {
    return operation.transpose_a == CUBLAS_OP_N ? a_layout.columns : a_layout.rows;
  }
  [[nodiscard]] bool with_bias() const { return operation.epilogue == CUBLASLT_EPILOGUE_BIAS; }
  [[nodiscard]] cudaDataType_t bias_type() const {
    return operation.has_bias_type ? operation.bias_type : d_layout.type;
  }
};

// Null if the emulator supports the product that the descriptors describe, else the problem.
const char* problem_of(const Product& product);

// A product without problems, on memory that the caller may access.
void compute(const Product& product);

}  // namespace tessera::emulator::cublas
