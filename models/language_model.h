// A model that predicts the next token: logits and loss. What all models offer is in model.h.
#pragma once

#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "models/model.h"

namespace tessera::models {

class LanguageModel : public Model {
 public:
  // ids [batch, length], int32 or int64 -> logits [batch, length, vocabulary] in the parameters'
  // dtype, all on the parameters' device.
  virtual Tensor forward(const Tensor& ids) = 0;
  // Mean cross-entropy over the targets [batch, length] that are not -100. A model whose head is a
  // linear layer needs no whole logits for it: linear_cross_entropy().
  virtual Tensor loss(const Tensor& ids, const Tensor& targets) {
    return cross_entropy(forward(ids), targets);
  }
};

// The loss of a head that is a layer of its own, or, where that is empty, the token table.
inline Tensor loss_of_head(const Tensor& x, const nn::Linear& head, const Tensor& table,
                           const Tensor& targets) {
  if (!head) return linear_cross_entropy(x, table, targets);
  return head.call([&](const nn::LinearImpl& linear) {
    return linear_cross_entropy(x, linear.weight(), targets);
  });
}

}  // namespace tessera::models
