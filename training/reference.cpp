// Finds and checks a reference.
#include "training/reference.h"

#include "base/error.h"
#include "engine/autograd.h"

namespace tessera::training {
namespace {

FrozenModel::Place place_of_reference(const Recipe& recipe) {
  if (const auto& own = recipe.train.dpo.reference) return {*own, "train.dpo.reference"};
  TESSERA_REQUIRE(recipe.model.pretrained, "a reference of no folder");
  return {*recipe.model.pretrained, "model.pretrained"};
}

}  // namespace

FrozenReference::FrozenReference(const Recipe& recipe, const Context& context)
    : key_(place_of_reference(recipe).key),
      frozen_(recipe, context, place_of_reference(recipe), make_frozen_language_model) {}

void FrozenReference::require_fit(const Recipe& recipe, const models::Model& trained) const {
  require_same_ids(recipe, key_, frozen_, trained);
}

Tensor FrozenReference::row_losses(const Tensor& ids, const Tensor& targets) {
  const NoGradGuard no_grad;
  return dynamic_cast<models::LanguageModel&>(frozen_.model()).row_losses(ids, targets);
}

}  // namespace tessera::training
