// The model of train.teacher.
#pragma once

#include <memory>
#include <string>

#include "models/language_model.h"
#include "sharding/fully_shard.h"
#include "tasks/next_token.h"
#include "training/recipe/recipe.h"

namespace tessera::training {

// A language model in frozen units under the recipe's strategy, in its dtype of compute: each rank
// holds its shard in that dtype, without gradients and moments. Under FULL_SHARD a unit is gathered
// once a micro-batch, for the forward, whatever the recipe's reshard_after_forward is; the root,
// and all units under strategies that keep units gathered, stay so from the first forward on.
class ShardedTeacher final : public tasks::Teacher {
 public:
  // Collective. `recipe` has train.teacher. On a planned device it reads the configuration alone.
  // Throws an Error with the place of the key for a folder without a language model.
  ShardedTeacher(const Recipe& recipe, const Context& context);

  // Throws Error(configuration) if the teacher's ids do not mean the student's tokens, or its
  // positions do not reach for model.seq_len.
  void require_fit(const Recipe& recipe, const models::Model& student) const;

  [[nodiscard]] Tensor logits(const Tensor& ids) override;
  [[nodiscard]] CommunicationStatistics communication() const override {
    return sharded_->communication();
  }

 private:
  void load(const Context& context);

  std::string folder_, adapter_;  // of the model, and of an adapter over it, or empty
  std::unique_ptr<models::LanguageModel> model_;
  std::optional<ShardedModel> sharded_;
};

}  // namespace tessera::training
