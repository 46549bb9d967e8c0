// The Newton-Schulz iteration of Muon on one matrix, composed of the kernels for products.
#pragma once

#include <array>
#include <cstdint>

#include "engine/tensor.h"

namespace tessera::optim {

// Brings the singular values of a matrix near 1 (between 0.7 and 1.2 for most of them after five
// steps): x = x / max(|x|, eps), |x| the Frobenius norm; then `steps` times x = c0 * x + (c1 * a +
// c2 * a a) x with a = x x^T, or the same with x^T x where that is smaller. Products have the dtype
// of x and sum in fp32; on a GPU the norm is waited for. The bits depend on the values and the
// shape alone.
class NewtonSchulz {
 public:
  struct Options {
    std::array<double, 3> coefficients;
    int steps;
    double eps;
  };
  // For matrices with a smaller side of at most `side`: two [side, side] of `dtype`.
  NewtonSchulz(const Options& options, std::int64_t side, DType dtype, Device device);

  // The first rows * columns elements of x are the matrix, and afterwards the result. y has as many
  // elements, which change; the two may have changed places.
  void operator()(Tensor& x, Tensor& y, std::int64_t rows, std::int64_t columns);

 private:
  [[nodiscard]] double norm_of(const Tensor& x, std::int64_t elements) const;
  void scale(const Tensor& from, const Tensor& to, std::int64_t elements, double factor) const;
  void multiply_by_itself(const Tensor& x, std::int64_t rows, std::int64_t columns) const;
  void add_product(const Tensor& x, const Tensor& y, std::int64_t rows, std::int64_t columns) const;

  Options options_;
  DType dtype_;
  Device device_;
  Tensor square_, polynomial_, sum_;
};

}  // namespace tessera::optim
