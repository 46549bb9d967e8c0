// What every language model offers to the program: logits, loss, its configuration, and the names
// that its tensors have in Hugging Face folders. A model is an ordinary module; nothing below this
// floor knows it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/nn/layers.h"
#include "engine/ops.h"

namespace tessera::models {

// How a folder that transformers saved may name a model's tensors.
struct HuggingFaceNames {
  // The names that a parameter may have in a file, the most usual first.
  std::vector<std::string> (*aliases)(const std::string& name);
  // Tensors in a file that are not parameters (masks, frequencies, the copy of a tied head); a '#'
  // stands for digits (checkpoint::matches_name).
  std::vector<std::string> ignored;
};

class LanguageModel : public nn::Module {
 public:
  // ids [batch, length], int32 or int64 -> logits [batch, length, vocabulary] in the parameters'
  // dtype, all on the parameters' device.
  virtual Tensor forward(const Tensor& ids) = 0;
  // Mean cross-entropy over the targets [batch, length] that are not -100. A model whose head is a
  // linear layer needs no whole logits for it: linear_cross_entropy().
  virtual Tensor loss(const Tensor& ids, const Tensor& targets) {
    return cross_entropy(forward(ids), targets);
  }

  // Hugging Face's config.json for weights stored as `weights`. make_language_model() reads it
  // back; keys of the original configuration that this model has no use for are kept.
  [[nodiscard]] virtual nlohmann::json config(DType weights = float32) const = 0;
  [[nodiscard]] virtual HuggingFaceNames hugging_face_names() const = 0;

  // The class of the repeated layer: TRANSFORMER_BASED_WRAP's default.
  [[nodiscard]] virtual std::string layer_class() const = 0;
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  // The longest sequence that forward() takes.
  [[nodiscard]] virtual std::int64_t positions() const = 0;
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
