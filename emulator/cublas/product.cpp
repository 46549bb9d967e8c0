// Checks and computes products.
#include "emulator/cublas/product.h"

#include <cstring>
#include <vector>

#include "base/low_precision.h"

namespace tessera::emulator::cublas {
namespace {

// One matrix of a batch.
class Matrix {
 public:
  Matrix(const void* data, const Layout& layout, std::int64_t index)
      : type_(layout.type),
        leading_(layout.leading),
        first_(static_cast<std::byte*>(const_cast<void*>(data)) +
               index * layout.stride * size_of_type(layout.type)) {}

  [[nodiscard]] double at(std::int64_t row, std::int64_t column) const {
    const std::byte* from = place(row, column);
    switch (type_) {
      case CUDA_R_16BF:
        return static_cast<double>(to_float(load<BFloat16>(from)));
      case CUDA_R_16F:
        return static_cast<double>(to_float(load<Float16>(from)));
      case CUDA_R_64F:
        return load<double>(from);
      default:
        return static_cast<double>(load<float>(from));
    }
  }

  void set(std::int64_t row, std::int64_t column, double value) const {
    std::byte* to = place(row, column);
    switch (type_) {
      case CUDA_R_16BF:
        return store(to, to_bfloat16(static_cast<float>(value)));
      case CUDA_R_16F:
        return store(to, to_float16(static_cast<float>(value)));
      case CUDA_R_64F:
        return store(to, value);
      default:
        return store(to, static_cast<float>(value));
    }
  }

 private:
  template <class T>
  static T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  template <class T>
  static void store(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof(T));
  }
  [[nodiscard]] std::byte* place(std::int64_t row, std::int64_t column) const {
    return first_ + (column * leading_ + row) * size_of_type(type_);
  }

  cudaDataType_t type_;
  std::int64_t leading_;
  std::byte* first_;
};

bool good_types(const Product& p) {
  const cudaDataType_t in = p.a_layout.type;
  const cudaDataType_t out = p.d_layout.type;
  if (size_of_type(in) == 0 || p.b_layout.type != in || p.c_layout.type != out) return false;
  if (p.operation.compute == CUBLAS_COMPUTE_64F) {
    return p.operation.scale == CUDA_R_64F && in == CUDA_R_64F && out == CUDA_R_64F;
  }
  return p.operation.compute == CUBLAS_COMPUTE_32F && p.operation.scale == CUDA_R_32F &&
         in != CUDA_R_64F && (out == in || out == CUDA_R_32F);
}

bool good_layout(const Layout& layout) {
  return layout.rows > 0 && layout.columns > 0 && layout.batch > 0 &&
         layout.leading >= layout.rows && layout.stride >= 0;
}

// op(matrix) has this many rows and columns.
bool has_sizes(const Layout& layout, cublasOperation_t transpose, std::int64_t rows,
               std::int64_t columns) {
  const bool plain = transpose == CUBLAS_OP_N;
  return (plain ? layout.rows : layout.columns) == rows &&
         (plain ? layout.columns : layout.rows) == columns;
}

// The elements of op(matrix); each of the `outer` vectors over k is contiguous.
template <class Scale>
std::vector<Scale> vectors_over_depth(const Matrix& matrix, bool depth_is_column,
                                      std::int64_t outer, std::int64_t depth) {
  std::vector<Scale> values;
  values.reserve(static_cast<std::size_t>(outer * depth));
  for (std::int64_t i = 0; i < outer; ++i) {
    for (std::int64_t k = 0; k < depth; ++k) {
      values.push_back(static_cast<Scale>(depth_is_column ? matrix.at(i, k) : matrix.at(k, i)));
    }
  }
  return values;
}

template <class Scale>
void compute_as(const Product& p, std::int64_t index) {
  const std::int64_t depth = p.depth();
  const std::int64_t rows = p.d_layout.rows;
  const std::int64_t columns = p.d_layout.columns;
  const auto left = vectors_over_depth<Scale>(Matrix(p.a, p.a_layout, index),
                                              p.operation.transpose_a == CUBLAS_OP_N, rows, depth);
  const auto right = vectors_over_depth<Scale>(
      Matrix(p.b, p.b_layout, index), p.operation.transpose_b != CUBLAS_OP_N, columns, depth);
  const Matrix before(p.c, p.c_layout, index);
  const Matrix result(p.d, p.d_layout, index);
  Layout bias_layout;
  bias_layout.type = p.bias_type();
  const Matrix bias(p.operation.bias, bias_layout, 0);
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t row = 0; row < rows; ++row) {
      Scale sum = 0;
      const Scale* l = left.data() + row * depth;
      const Scale* r = right.data() + column * depth;
      for (std::int64_t k = 0; k < depth; ++k) sum += l[k] * r[k];
      Scale value = static_cast<Scale>(p.alpha) * sum;
      // Where beta is 0, the contents of c do not matter, not even a NaN.
      if (p.beta != 0) value += static_cast<Scale>(p.beta * before.at(row, column));
      if (p.with_bias()) value += static_cast<Scale>(bias.at(row, 0));
      result.set(row, column, static_cast<double>(value));
    }
  }
}

}  // namespace

const char* problem_of(const Product& p) {
  if (!good_types(p)) return "this mix of types is not emulated";
  for (const Layout* layout : {&p.a_layout, &p.b_layout, &p.c_layout, &p.d_layout}) {
    if (!good_layout(*layout)) return "a layout is empty, or its columns overlap";
    if (layout->batch != p.d_layout.batch) return "the layouts' batches differ";
  }
  const std::int64_t rows = p.d_layout.rows;
  const std::int64_t columns = p.d_layout.columns;
  if (!has_sizes(p.a_layout, p.operation.transpose_a, rows, p.depth()) ||
      !has_sizes(p.b_layout, p.operation.transpose_b, p.depth(), columns) ||
      !has_sizes(p.c_layout, CUBLAS_OP_N, rows, columns)) {
    return "the layouts' sizes do not fit each other";
  }
  if (p.d_layout.batch > 1 && p.d_layout.stride < (columns - 1) * p.d_layout.leading + rows) {
    return "the results of the batch overlap";
  }
  if (p.with_bias() && p.bias_type() != p.d_layout.type) {
    return "a bias of another type than the result's is not emulated";
  }
  return nullptr;
}

void compute(const Product& product) {
  for (std::int64_t index = 0; index < product.d_layout.batch; ++index) {
    if (product.operation.compute == CUBLAS_COMPUTE_64F) {
      compute_as<double>(product, index);
    } else {
      compute_as<float>(product, index);
    }
  }
}

}  // namespace tessera::emulator::cublas
