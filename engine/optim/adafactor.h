// Adafactor: second moments of rows and columns instead of elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/optim/optimizer.h"
#include "engine/optim/settings.h"

namespace tessera::optim {

class Adafactor;
struct AdafactorOptions {
  using Made = Adafactor;
  // The largest step relative to a parameter's own size: that of step t is min(lr, 1 / sqrt(t)).
  double lr = 1e-2;
  double beta2_decay = -0.8;        // at most 0
  std::optional<double> eps1 = {};  // unset: the parameter's dtype's, 2^-23 of fp32
  double eps2 = 1e-3;               // the least size of a parameter
  double clip_threshold = 1;        // at least 1; torch's d
  double weight_decay = 0;          // decoupled: multiplied by the learning rate
  ParameterFilter decay = {};       // which parameters decay; empty: all
  std::vector<ParameterGroup> groups = {};
};

// True for parameters of at least two dimensions, which have moments of rows and columns.
bool is_factored(const nn::NamedParameter& parameter);

Settings settings_of(const AdafactorOptions& options);
// Factored parameters are apart: others have a moment for each element.
ShardNeeds needs_of(const AdafactorOptions& options);

// The numbers that ranks add in one message, at most, unless one parameter has more; and the
// elements of a part that are worked on at a time.
inline constexpr std::int64_t adafactor_numbers = std::int64_t{1} << 22;
inline constexpr std::int64_t adafactor_piece = std::int64_t{1} << 22;

// Adafactor (Shazeer & Stern 2018, arXiv:1804.04235), with the conventions of
// torch.optim.Adafactor. In step t of a parameter p of n elements with gradient g:
//   rho = min(lr, 1 / sqrt(t)), w = t^beta2_decay, alpha = max(eps2, |p| / sqrt(n)) * rho
//   p = p - lr * weight_decay * p
//   at least two dimensions, the last two of which have r rows and c columns:
//     row_var = (1 - w) * row_var + w * mean over columns of g^2, col_var likewise over rows
//     v = row_var * col_var / max(mean of row_var, eps1)
//   else: v = variance = (1 - w) * variance + w * g^2
//   u = g / sqrt(max(v, eps1^2))
//   p = p - alpha / max(1, |u| / sqrt(n) / clip_threshold) * u
// |x| is the norm over all elements. The state of a matrix is r + c numbers.
//
// The sums over rows, columns and parameters do not depend on where a parameter is cut: they are
// sums of integers (kernels/adafactor.h), which the ranks that hold its parts add in three messages
// for a step of few parameters, more for many (adafactor_numbers). No matrix is gathered. So the
// bits are the same under every strategy and on every world. Every rank then has the same row_var
// and col_var, whole. step() is collective; the same parameters have gradients on every rank.
//
// Squares of a row or column count as zero if they are below 2^-104 * max(r, c) of the sum over the
// parameter: gradients some 2^-30 times as large as the largest, as a rule.
class Adafactor : public Optimizer {
 public:
  // Error(configuration) if masters, gradients or state are offloaded to files or to a GPU's host.
  Adafactor(std::vector<nn::NamedParameter> parameters, const AdafactorOptions& options);
  void step() override;
  void step(std::size_t segment) override;
  // Those of parameters that are not factored; the others have "row_var" and "col_var", shaped as
  // torch's, with a dimension of 1 for the columns or rows.
  [[nodiscard]] std::vector<std::string> state_names() const override { return {"variance"}; }
  [[nodiscard]] std::vector<std::string> state_names_of(std::size_t parameter) const override;
  [[nodiscard]] StateFormat state_format(std::size_t parameter, std::size_t which) const override;

 protected:
  void update(const Update& update) override;

 private:
  class Steps;
  void begin(std::size_t segment, std::vector<std::size_t>& parameters);
  void step_parameters(std::vector<std::size_t> parameters);

  AdafactorOptions options_;
};

}  // namespace tessera::optim
