// Frozen models beside the trained one: those of train.teacher.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "models/language_model.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "sharding/fully_shard.h"
#include "tasks/next_token.h"
#include "tasks/sentence_pairs.h"
#include "training/recipe/recipe.h"

namespace tessera::training {

// A model in frozen units under the recipe's strategy, in its dtype of compute: each rank holds its
// shard in that dtype, without gradients and moments. Under FULL_SHARD a unit is gathered once a
// forward, whatever the recipe's reshard_after_forward is; the root, and all units under strategies
// that keep units gathered, stay so from the first forward on.
class FrozenModel {
 public:
  // Builds the model of a folder on `meta`.
  using Make = std::function<std::unique_ptr<models::Model>(const std::string& folder)>;
  // A folder, and the recipe's key that names it.
  struct Place {
    std::string folder, key;
  };

  // Collective. On a planned device it reads the configuration alone. Throws an Error with the
  // place of the key for a folder without such a model.
  FrozenModel(const Recipe& recipe, const Context& context, const Place& place, const Make& make);

  [[nodiscard]] models::Model& model() const { return *model_; }
  // The folder of the weights; for an adapter its base's.
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] CommunicationStatistics communication() const { return sharded_->communication(); }

 private:
  void load(const Context& context);

  std::string folder_, adapter_;  // of the model, and of an adapter over it, or empty
  std::unique_ptr<models::Model> model_;
  std::optional<ShardedModel> sharded_;
};

// Makes the language model of a folder.
std::unique_ptr<models::Model> make_frozen_language_model(const std::string& folder);

// Throws Error(configuration) with the place of the key if the ids of a frozen language model do
// not mean the trained model's tokens, or its positions do not reach for model.seq_len.
void require_same_ids(const Recipe& recipe, const std::string& key, const FrozenModel& frozen,
                      const models::Model& trained);

// A language model whose logits the trained one learns.
class LanguageTeacher final : public tasks::Teacher {
 public:
  LanguageTeacher(const Recipe& recipe, const Context& context);

  // Throws Error(configuration) if the teacher's ids do not mean the student's tokens, or its
  // positions do not reach for model.seq_len.
  void require_fit(const Recipe& recipe, const models::Model& student) const;

  [[nodiscard]] Tensor logits(const Tensor& ids, const models::Documents& documents) override;
  [[nodiscard]] nn::Module& module() override { return frozen_.model(); }
  [[nodiscard]] CommunicationStatistics communication() const override {
    return frozen_.communication();
  }

 private:
  FrozenModel frozen_;
};

// A sentence encoder whose embeddings the trained one learns. Its tokenizer and the length of its
// texts are those of its folder; without a tokenizer there, data.tokenizer is its own. Its folder's
// prompt and width of embeddings hold, as in Sentence Transformers' encode(); with
// train.teacher_states, which compares the same tokens, the prompt does not.
class EncoderTeacher final : public tasks::SentenceTeacher {
 public:
  EncoderTeacher(const Recipe& recipe, const Context& context);

  // Throws Error(configuration) if train.teacher_states compares tokens and its tokenizer is not
  // data.tokenizer.
  void require_fit(const Recipe& recipe) const;

  [[nodiscard]] Tensor embeddings(const models::TokenBatch& tokens) override;
  [[nodiscard]] nn::Module& module() override { return frozen_.model(); }
  [[nodiscard]] std::int64_t dimension() const override { return encoder().embedding_width(); }
  [[nodiscard]] const tasks::TextTokens& tokens() const override { return tokens_; }
  [[nodiscard]] CommunicationStatistics communication() const override {
    return frozen_.communication();
  }

 private:
  [[nodiscard]] const models::SentenceEncoder& encoder() const;

  FrozenModel frozen_;
  tasks::TextTokens tokens_;
};

}  // namespace tessera::training
