// Results in double precision by Eigen, written like the formulas in a textbook, with which tests
// compare kernels. Independent of the library under test.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::reference {

// A matrix in memory with strides; for a transposed one they are exchanged.
template <class Value>
struct Strided {
  Value* data;
  std::int64_t rows, columns, row_stride, column_stride = 1;
};
template <class Value>
Strided(Value*, std::int64_t, std::int64_t, std::int64_t, std::int64_t = 1) -> Strided<Value>;
using Matrix = Strided<const double>;
using MutableMatrix = Strided<double>;

// The product, and the product of absolute values, which bounds the error for any order of
// summation. Both row by row without gaps.
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

// The gradients of normalized * gamma + beta; without gamma it is all ones.
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
  // The factor by which dropout multiplies a probability: 0, or 1
  // (1 - its rate).
  std::function<double(std::int64_t query, std::int64_t key)> kept;
  // Rounds probabilities, their gradients, out and dq to the type in which they are stored.
  std::function<double(double)> rounded;
  double soft_cap = 0;  // a scaled score s becomes soft_cap * tanh(s / soft_cap); 0 for no cap
  std::function<double(std::int64_t query, std::int64_t key)> bias = {};  // of capped scores
};

// Sets out, dq and, for each query, log_sum_exp; adds to dk and dv, which several heads may share.
struct AttentionResults {
  MutableMatrix out, dq, dk, dv;
  double* log_sum_exp;
  // Called with the gradient of each biased score.
  std::function<void(std::int64_t query, std::int64_t key, double)> add_bias_gradient = {};
};
void attention(const AttentionHead& head, const AttentionResults& results);

}  // namespace tessera::reference
