// Losses as compositions, in fp32 for 16-bit types.
#include "base/error.h"
#include "engine/op_checks.h"
#include "engine/ops/strided.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

Tensor widened(const Tensor& x) {
  return x.dtype() == float64 ? x : cast(x, float32);
}

void require_pair(const char* op, const Tensor& x, const Tensor& target) {
  ops::require_floating(op, x, target);
  TESSERA_REQUIRE(x.shape() == target.shape() && x.dtype() == target.dtype(),
                  "{}: {} of shape {} and a target of {} {}; both have one shape and dtype", op,
                  name_of(x.dtype()), x.shape().to_string(), name_of(target.dtype()),
                  target.shape().to_string());
  ops::require_same_device(op, x, target);
}

Tensor reduced_loss(const char* op, const Tensor& losses, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  if (reduction == Reduction::sum) return sum(losses);
  TESSERA_REQUIRE(losses.elements() > 0, "{}: the mean over shape {}, which has no elements", op,
                  losses.shape().to_string());
  return mean(losses);
}

}  // namespace

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  require_pair("mse_loss", x, target);
  return reduced_loss("mse_loss", square(widened(x) - widened(target)), reduction);
}

Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  require_pair("l1_loss", x, target);
  return reduced_loss("l1_loss", abs(widened(x) - widened(target)), reduction);
}

Tensor huber_loss(const Tensor& x, const Tensor& target, double delta, Reduction reduction) {
  require_pair("huber_loss", x, target);
  TESSERA_REQUIRE(delta > 0, "huber_loss: delta is {}; it must be positive", delta);
  const Tensor distance = abs(widened(x) - widened(target));
  const Tensor line = distance * delta - 0.5 * delta * delta;
  return reduced_loss("huber_loss",
                      where(less_equal(distance, delta), square(distance) * 0.5, line), reduction);
}

Tensor bce_with_logits(const Tensor& x, const Tensor& target, Reduction reduction) {
  require_pair("bce_with_logits", x, target);
  const Tensor logits = widened(x);
  // log(1 + e^x) - target x, and softplus is x far above 0.
  return reduced_loss("bce_with_logits", softplus(logits, 1, 40) - widened(target) * logits,
                      reduction);
}

Tensor kl_div(const Tensor& x, const Tensor& target, Reduction reduction) {
  require_pair("kl_div", x, target);
  const Tensor weights = widened(target.detach());
  // 0 log 0 is 0: the logarithm of 1 stands for it.
  const Tensor logarithms = log(masked_fill(weights, equal(weights, 0.0), 1));
  return reduced_loss("kl_div", weights * (logarithms - widened(x)), reduction);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  ops::require_floating("cross_entropy", logits);
  ops::require_defined("cross_entropy", targets);
  TESSERA_REQUIRE(
      options.label_smoothing >= 0 && options.label_smoothing <= 1 && options.z_loss >= 0,
      "cross_entropy: label_smoothing {} and z_loss {}; the first is from 0 to 1, the second not "
      "negative",
      options.label_smoothing, options.z_loss);
  Tensor plain = cross_entropy(logits, targets, options.ignore);  // checks shapes and targets
  if (options.label_smoothing == 0 && options.z_loss == 0) return plain;
  const std::int64_t rows = targets.elements();
  const Tensor values = widened(reshape(logits, Shape{rows, logits.size(-1)}));
  // 1 for each row that counts, over their number.
  const Tensor counted =
      not_equal(reshape(targets, Shape{rows}), static_cast<double>(options.ignore));
  const Tensor zeros = Tensor::zeros({rows}, values.dtype(), values.device());
  const Tensor weights = masked_fill(zeros, counted, 1);
  const Tensor share =
      weights / maximum(sum(weights), Tensor::full({}, 1, values.dtype(), values.device()));
  const Tensor normalizers = logsumexp(values, -1);
  Tensor loss = plain * (1 - options.label_smoothing);
  if (options.label_smoothing > 0) {
    loss = loss + sum(share * (normalizers - mean(values, -1))) * options.label_smoothing;
  }
  if (options.z_loss > 0) loss = loss + sum(share * square(normalizers)) * options.z_loss;
  return loss;
}

}  // namespace tessera
