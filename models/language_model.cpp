// The losses of a batch's rows.
#include "models/language_model.h"

#include <vector>

#include "engine/tensor_ops.h"

namespace tessera::models {

Tensor row_losses_of_head(const Tensor& x, const nn::Linear& head, const nn::Embedding& table,
                          const Tensor& targets) {
  const std::vector<Tensor> targets_of = split(targets, 1);
  std::vector<Tensor> losses;
  const auto add = [&](const Tensor& of_all, const auto& loss) {
    const std::vector<Tensor> rows = split(of_all, 1);
    for (std::size_t i = 0; i < rows.size(); ++i) losses.push_back(loss(rows[i], targets_of[i]));
    return stack(losses);
  };
  const auto of_weight = [&](const Tensor& inputs, const Tensor& weight) {
    return add(inputs, [&weight](const Tensor& row, const Tensor& wanted) {
      return linear_cross_entropy(row, weight, wanted);
    });
  };
  if (!head) return of_weight(x, table->weight());
  if (needs_own_call(head)) {
    return add(head(x), [](const Tensor& logits, const Tensor& wanted) {
      return cross_entropy(logits, wanted, -100);
    });
  }
  return head.call([&](const nn::LinearImpl& linear) {
    const Tensor weight = linear.weight();
    return of_weight(nn::detail::in_precision(x, weight.dtype()), weight);
  });
}

}  // namespace tessera::models
