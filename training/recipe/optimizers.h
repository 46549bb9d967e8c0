// The optimizers of a recipe, one row each.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/optim/choice.h"
#include "training/recipe/schema.h"

namespace tessera::training {

struct OptimizerRow {
  OptimizerKind kind;
  std::string_view name;  // of train.optimizer
  // From the keys alone: recipe_trainer.cpp adds what depends on the module's parameters.
  optim::OptimizerChoice (*options)(const TrainRecipe& train);
  bool offloads = true;   // parameters, gradients and moments may lie in files or on a GPU's host
  bool has_betas = true;  // train.betas
  bool has_eps = true;    // train.eps
};

std::span<const OptimizerRow> optimizer_rows();
const OptimizerRow& row_of(OptimizerKind kind);

// The keys of single optimizers, but for Muon's.
std::vector<RecipeKey> optimizer_keys();

// Error(configuration) if `offloads` and the optimizer keeps everything in the `place` that the
// message names.
void check_offloads(const Recipe& recipe, bool offloads, std::string_view place);
// Checks train.optimizer against other keys. Error(configuration).
void validate_optimizer(const Recipe& recipe);

}  // namespace tessera::training
