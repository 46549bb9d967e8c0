// The divergence from the teacher's distribution, and the cross-entropy beside it.
#include "tasks/losses/distillation.h"

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/ops.h"
#include "engine/tensor_ops.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t ignored = -100;

// 1 for a row whose target counts, else 0: [rows, 1].
Tensor counted_rows(const Tensor& targets, DType dtype) {
  const Tensor ids = reshape(targets, {targets.elements(), 1});
  const Device device = targets.device();
  return where(not_equal(ids, static_cast<double>(ignored)), Tensor::full({1}, 1, dtype, device),
               Tensor::zeros({1}, dtype, device));
}

Tensor divergence(const Tensor& logits, const Tensor& teacher, const Tensor& targets,
                  double temperature) {
  const DType wide = logits.dtype() == float64 ? float64 : float32;
  const Shape rows{targets.elements(), logits.size(logits.dimensions() - 1)};
  Tensor wanted, count;
  {
    const NoGradGuard no_grad;
    const Tensor counts = counted_rows(targets, wide);
    count = maximum(sum(counts), Tensor::full({}, 1, wide, targets.device()));
    wanted = softmax(cast(reshape(teacher, rows), wide) * (1 / temperature)) * counts;
  }
  const Tensor logs = log_softmax(cast(reshape(logits, rows), wide) * (1 / temperature));
  return kl_div(logs, wanted, Reduction::sum) / count;
}

}  // namespace

Tensor distillation_loss(const Tensor& logits, const Tensor& teacher, const Tensor& targets,
                         const DistillationOptions& options) {
  TESSERA_REQUIRE(logits.shape() == teacher.shape(),
                  "distillation_loss of logits of shape {} and a teacher's of shape {}",
                  logits.shape().to_string(), teacher.shape().to_string());
  TESSERA_REQUIRE(
      options.temperature > 0 && options.weight > 0 && options.weight <= 1,
      "distillation_loss with temperature {} and weight {}: the temperature is above 0, "
      "the weight above 0 and at most 1",
      options.temperature, options.weight);
  const double factor = options.weight * options.temperature * options.temperature;
  Tensor imitation = divergence(logits, teacher, targets, options.temperature) * factor;
  if (options.weight == 1) return imitation;
  return imitation + cross_entropy(logits, targets, ignored) * (1 - options.weight);
}

}  // namespace tessera::tasks
