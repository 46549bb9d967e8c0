// The divergence from the teacher's distribution, and the cross-entropy beside it.
#include "tasks/losses/distillation.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/ops.h"
#include "engine/tensor_ops.h"
#include "tasks/losses/counted_rows.h"

namespace tessera::tasks {
namespace {

// Rows of a chunk: only one chunk's distributions lie in memory.
constexpr std::int64_t chunk_elements = std::int64_t{1} << 20;

struct DistilledRows {
  Tensor logits, teacher;  // [rows, vocabulary]
  Tensor counts;           // [rows, 1] of the dtype that is computed in
  double temperature;

  // Calls work(first row, rows) for each chunk.
  template <class Work>
  void each_chunk(const Work& work) const {
    const std::int64_t rows = logits.size(0);
    const std::int64_t most = std::max<std::int64_t>(1, chunk_elements / logits.size(1));
    for (std::int64_t first = 0; first < rows; first += most) {
      work(first, std::min(most, rows - first));
    }
  }
  // Rows of one of the two, divided by the temperature.
  [[nodiscard]] Tensor scaled(const Tensor& x, std::int64_t first, std::int64_t count) const {
    return cast(narrow(x, 0, first, count), counts.dtype()) * (1 / temperature);
  }
};

// The sum of all rows' divergences.
Tensor summed_divergence(const DistilledRows& of) {
  Tensor total = Tensor::zeros({}, of.counts.dtype(), of.counts.device());
  of.each_chunk([&](std::int64_t first, std::int64_t count) {
    const Tensor wanted =
        softmax(of.scaled(of.teacher, first, count)) * narrow(of.counts, 0, first, count);
    total = total + kl_div(log_softmax(of.scaled(of.logits, first, count)), wanted, Reduction::sum);
  });
  return total;
}

// Its gradient times `factor`, chunk by chunk: that of a row is (q - p) / temperature.
void add_gradient(const DistilledRows& of, const Tensor& factor,
                  const autograd::GradientSink::Slot& slot) {
  const Tensor rows = reshape(slot.tensor, of.logits.shape());
  of.each_chunk([&](std::int64_t first, std::int64_t count) {
    const Tensor difference =
        softmax(of.scaled(of.logits, first, count)) - softmax(of.scaled(of.teacher, first, count));
    Tensor gradient = difference * (narrow(of.counts, 0, first, count) * factor);
    Tensor place = narrow(rows, 0, first, count);
    if (slot.accumulate) gradient = gradient + cast(place, gradient.dtype());
    place.copy_from(cast(gradient, place.dtype()));
  });
}

// The mean divergence. The backward computes the distributions again, so that only both models'
// logits are kept for it.
Tensor divergence(const Tensor& logits, const Tensor& teacher, const Tensor& targets,
                  double temperature) {
  const DType wide = logits.dtype() == float64 ? float64 : float32;
  const Shape shape{targets.elements(), logits.size(logits.dimensions() - 1)};
  const auto rows_of = [shape, temperature](const Tensor& x, const Tensor& y,
                                            const Tensor& counts) {
    return DistilledRows{reshape(x, shape), reshape(y, shape), counts, temperature};
  };
  Tensor out, counts, share;
  {
    const NoGradGuard no_grad;
    counts = counted_rows(targets, wide);
    share = 1.0 / maximum(sum(counts), Tensor::full({}, 1, wide, targets.device()));
    out = summed_divergence(rows_of(logits, teacher, counts)) * share;
  }
  autograd::record(
      {Op::custom, "distillation_loss"}, {logits}, {out},
      [saved = autograd::SavedValue(logits), taught = autograd::SavedValue(teacher), counts, share,
       rows_of, temperature](std::vector<Tensor>& gradients, autograd::GradientSink& sink) {
        if (!sink.wants(0)) return;
        add_gradient(rows_of(saved.get(), taught.get(), counts),
                     gradients[0] * share * (1 / temperature), sink.slot(0));
      });
  return out;
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
  return imitation + cross_entropy(logits, targets, ignored_target) * (1 - options.weight);
}

}  // namespace tessera::tasks
