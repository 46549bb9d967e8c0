// The frozen reference of train.task: dpo as a model of its own.
#pragma once

#include "tasks/instructions/dpo.h"
#include "training/teacher.h"

namespace tessera::training {

// The model of train.dpo.reference or, without this key, of model.pretrained.
class FrozenReference final : public tasks::Reference {
 public:
  FrozenReference(const Recipe& recipe, const Context& context);

  // Throws Error(configuration) if its ids do not mean the trained model's tokens, or its positions
  // do not reach for model.seq_len.
  void require_fit(const Recipe& recipe, const models::Model& trained) const;

  [[nodiscard]] Tensor row_losses(const Tensor& ids, const Tensor& targets) override;
  [[nodiscard]] CommunicationStatistics communication() const override {
    return frozen_.communication();
  }

 private:
  std::string key_;
  FrozenModel frozen_;
};

}  // namespace tessera::training
