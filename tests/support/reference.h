// Results in double precision by Eigen, written as the formulas are in a textbook, for tests to
// hold kernels against. Knows nothing of the library that is tested.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::reference {

// A matrix that lies in memory in strides; a transposed one has them exchanged.
template <class Value>
struct Strided {
  Value* data;
  std::int64_t rows, columns, row_stride, column_stride = 1;
};
template <class Value>
Strided(Value*, std::int64_t, std::int64_t, std::int64_t, std::int64_t = 1) -> Strided<Value>;
using Matrix = Strided<const double>;
using MutableMatrix = Strided<double>;

// The product, and what it would be of absolute values, which bounds the error of any order of
// sums. Both row by row without gaps.
struct Product {
  std::vector<double> sum, magnitude;
};
Product product(const Matrix& a, const Matrix& b);

// LayerNorm without scale and shift, or RMSNorm, of each row.
struct Norm {
  std::vector<double> normalized, mean, rstd;
};
Norm normalize(const std::vector<double>& x, std::int64_t rows, std::int64_t columns, double eps,
               bool rms);

// The gradients of normalized * gamma + beta; no gamma is one of ones.
struct NormGradients {
  std::vector<double> dx, dgamma, dbeta;
};
NormGradients normalize_backward(const Norm& norm, const std::vector<double>& dout,
                                 const std::vector<double>& gamma, bool rms);

// One head of attention.
struct AttentionHead {
  Matrix q, k, v, dout;
  double scale;
  std::function<bool(std::int64_t query, std::int64_t key)> sees;
  // What dropout multiplies a probability by: 0, or 1 / (1 - its rate).
  std::function<double(std::int64_t query, std::int64_t key)> kept;
  // Applied to probabilities, their gradients, out and dq: the type that they are stored in.
  std::function<double(double)> rounded;
};

// Sets out, dq and, for each query, log_sum_exp; adds to dk and dv, which several heads may share.
struct AttentionResults {
  MutableMatrix out, dq, dk, dv;
  double* log_sum_exp;
};
void attention(const AttentionHead& head, const AttentionResults& results);

}  // namespace tessera::reference
