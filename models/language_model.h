// A model that predicts the next token: logits and loss. model.h has the interface of all models.
#pragma once

#include <memory>

#include "engine/nn/layers.h"
#include "engine/nn/lora.h"
#include "engine/ops.h"
#include "models/key_value_cache.h"
#include "models/model.h"
#include "models/own_call.h"
#include "sharding/context_parallel.h"

namespace tessera::models {

// Describes a batch whose rows are not whole texts.
//
// Several texts in each row, one behind the other: no text sees another one, and the positions of
// each begin at 0. Rows that several ranks hold together: ids and targets are this rank's part.
struct Documents {
  // AttentionOptions::document_starts, of whole rows; undefined: each row is one text
  Tensor starts = {};
  Tensor positions = {};  // int32, as the ids: of each token in its text; with `starts`
  std::shared_ptr<const ContextParallel> ranks = {};  // null: this rank has whole rows
};

// The position in its row of a batch's first column.
inline std::int64_t first_position(const Tensor& ids, const Documents& documents) {
  return documents.ranks ? documents.ranks->first_position(ids.size(1)) : 0;
}
// The positions of whole rows.
inline std::int64_t whole_length(const Tensor& ids, const Documents& documents) {
  return ids.size(1) * (documents.ranks ? documents.ranks->ranks() : 1);
}

class LanguageModel : public Model {
 public:
  // ids [batch, length], int32 or int64 -> logits [batch, length, vocabulary] in the parameters'
  // dtype, all on the parameters' device.
  Tensor forward(const Tensor& ids) { return packed_logits(ids, {}); }
  // The same for rows of several texts. The documents' tensors are on the parameters' device.
  virtual Tensor packed_logits(const Tensor& ids, const Documents& documents) = 0;
  // Mean cross-entropy over the targets [batch, length] that are not -100. A model whose head is a
  // linear layer does not need all logits for it: linear_cross_entropy().
  virtual Tensor loss(const Tensor& ids, const Tensor& targets) {
    return cross_entropy(forward(ids), targets);
  }
  // The same for rows of several texts.
  virtual Tensor packed_loss(const Tensor& ids, const Tensor& targets,
                             const Documents& documents) = 0;
  // The mean cross-entropy of each row alone: [batch], in fp32 (fp64 for fp64). Without the loss of
  // a mixture's routers, which is not a row's.
  virtual Tensor row_losses(const Tensor& ids, const Tensor& targets) = 0;

  // A cache for one sequence of up to `capacity` tokens.
  [[nodiscard]] virtual KeyValueCache make_cache(std::int64_t capacity) const = 0;
  // Logits [sequences, vocabulary] of the tokens after the batch's ids. The ids follow the contents
  // of its caches, and are added to them. Gradients are off and the model is in evaluation mode.
  // Sums are rounded in another order than in forward().
  virtual Tensor decode(const DecodingBatch& batch) = 0;
};

// decode()'s linear layers, through the layer's own call, and its head.
inline Tensor decode_layer(const nn::Linear& layer, const Tensor& x) {
  return layer.call([&](const nn::LinearImpl& linear) {
    const bool scales = linear.scales_product();
    Tensor y =
        decode_linear(x, linear.weight(), scales ? Tensor{} : linear.bias(), linear.layout());
    if (!linear.has_lora() || WithoutLora::is_on()) return y;
    const Tensor low = decode_linear(x, linear.lora_a()->weight(), {}, WeightLayout::out_in);
    y = y + decode_linear(low * linear.lora_scaling(), linear.lora_b()->weight(), {},
                          WeightLayout::out_in);
    return scales ? linear.scale_and_add_bias(y) : y;
  });
}
inline Tensor decode_head(const Tensor& x, const nn::Linear& head, const nn::Embedding& table) {
  const Tensor logits =
      head ? decode_layer(head, x) : decode_linear(x, table->weight(), {}, WeightLayout::out_in);
  return reshape(logits, {logits.size(0), logits.size(2)});
}

// The loss of a head that is a layer of its own or, if that is empty, the token table.
inline Tensor loss_of_head(const Tensor& x, const nn::Linear& head, const nn::Embedding& table,
                           const Tensor& targets) {
  if (!head) return linear_cross_entropy(x, table->weight(), targets);
  if (needs_own_call(head)) return cross_entropy(head(x), targets);
  return head.call([&](const nn::LinearImpl& linear) {
    const Tensor weight = linear.weight();
    return linear_cross_entropy(nn::detail::in_precision(x, weight.dtype()), weight, targets);
  });
}

// The same for each row of x [batch, length, width] and targets [batch, length] alone: [batch].
Tensor row_losses_of_head(const Tensor& x, const nn::Linear& head, const nn::Embedding& table,
                          const Tensor& targets);

}  // namespace tessera::models
