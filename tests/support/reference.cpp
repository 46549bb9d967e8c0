// The only file that includes Eigen, whose headers take seconds to compile.
#include "tests/support/reference.h"

#include <Eigen/Core>
#include <cmath>
#include <limits>

namespace tessera::reference {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;

Eigen::Map<const RowMajor, 0, Strides> view(const Matrix& m) {
  return {m.data, m.rows, m.columns, {m.row_stride, m.column_stride}};
}

Eigen::Map<RowMajor, 0, Strides> view(const MutableMatrix& m) {
  return {m.data, m.rows, m.columns, {m.row_stride, m.column_stride}};
}

// Rows of `values` without gaps.
Eigen::Map<const RowMajor> rows_of(const std::vector<double>& values, std::size_t rows) {
  const auto count = static_cast<Eigen::Index>(rows);
  return {values.data(), count, static_cast<Eigen::Index>(values.size()) / count};
}

std::vector<double> values_of(const RowMajor& matrix) {
  return {matrix.data(), matrix.data() + matrix.size()};
}

// Every product uses this function, because each kind takes seconds to compile.
RowMajor times(const RowMajor& a, const RowMajor& b) {
  return a * b;
}

}  // namespace

Product product(const Matrix& a, const Matrix& b) {
  return {values_of(times(view(a), view(b))),
          values_of(times(view(a).cwiseAbs(), view(b).cwiseAbs()))};
}

Norm normalize(const std::vector<double>& x, std::int64_t rows, std::int64_t columns, double eps,
               bool rms) {
  const Eigen::Map<const RowMajor> values(x.data(), rows, columns);
  Eigen::VectorXd mean = Eigen::VectorXd::Zero(rows);
  if (!rms) mean = values.rowwise().mean();
  const RowMajor centered = values.colwise() - mean;
  const Eigen::VectorXd variance = centered.rowwise().squaredNorm() / static_cast<double>(columns);
  const Eigen::VectorXd rstd = (variance.array() + eps).sqrt().inverse();
  return {values_of(rstd.asDiagonal() * centered), values_of(mean), values_of(rstd)};
}

NormGradients normalize_backward(const Norm& norm, const std::vector<double>& dout,
                                 const std::vector<double>& gamma, bool rms) {
  const auto normalized = rows_of(norm.normalized, norm.rstd.size());
  const auto gradient = rows_of(dout, norm.rstd.size());
  const auto rstd = rows_of(norm.rstd, norm.rstd.size());
  RowMajor inner = gradient;
  if (!gamma.empty()) inner *= rows_of(gamma, 1).row(0).asDiagonal();
  const Eigen::VectorXd along = inner.cwiseProduct(normalized).rowwise().mean();
  if (!rms) inner.colwise() -= inner.rowwise().mean().eval();
  return {values_of(rstd.col(0).asDiagonal() * (inner - along.asDiagonal() * normalized)),
          values_of(gradient.cwiseProduct(normalized).colwise().sum()),
          values_of(gradient.colwise().sum())};
}

void attention(const AttentionHead& head, const AttentionResults& results) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const RowMajor q = view(head.q), k = view(head.k), v = view(head.v), dout = view(head.dout);
  RowMajor scores = head.scale * times(q, k.transpose());
  RowMajor cap_slopes = RowMajor::Ones(scores.rows(), scores.cols());
  if (head.soft_cap > 0) {
    const RowMajor ratios = (scores / head.soft_cap).array().tanh();
    scores = head.soft_cap * ratios;
    cap_slopes = 1 - ratios.array().square();
  }
  for (Eigen::Index i = 0; i < scores.rows(); ++i) {
    for (Eigen::Index j = 0; j < scores.cols(); ++j) {
      if (head.bias) scores(i, j) += head.bias(i, j);
      if (!head.sees(i, j)) scores(i, j) = -infinity;
    }
  }
  RowMajor probabilities = RowMajor::Zero(scores.rows(), scores.cols());
  for (Eigen::Index i = 0; i < scores.rows(); ++i) {
    const double largest = scores.row(i).maxCoeff();
    results.log_sum_exp[i] = -infinity;
    if (largest == -infinity) continue;  // the query sees no key
    probabilities.row(i) = (scores.row(i).array() - largest).exp();
    const double sum = probabilities.row(i).sum();
    probabilities.row(i) /= sum;
    results.log_sum_exp[i] = largest + std::log(sum);
  }
  const RowMajor kept = RowMajor::NullaryExpr(scores.rows(), scores.cols(), head.kept);
  const RowMajor dropped = probabilities.cwiseProduct(kept).unaryExpr(head.rounded);
  const RowMajor out = times(dropped, v).unaryExpr(head.rounded);

  const Eigen::VectorXd delta = out.cwiseProduct(dout).rowwise().sum();
  const RowMajor slopes = times(dout, v.transpose()).cwiseProduct(kept).colwise() - delta;
  const RowMajor biased = probabilities.cwiseProduct(slopes);
  for (Eigen::Index i = 0; results.add_bias_gradient && i < biased.rows(); ++i) {
    for (Eigen::Index j = 0; j < biased.cols(); ++j) results.add_bias_gradient(i, j, biased(i, j));
  }
  const RowMajor dscores = (biased.cwiseProduct(cap_slopes) * head.scale).unaryExpr(head.rounded);
  view(results.out) = out;
  view(results.dq) = times(dscores, k).unaryExpr(head.rounded);
  view(results.dk) += times(dscores.transpose(), q);
  view(results.dv) += times(dropped.transpose(), dout);
}

}  // namespace tessera::reference
