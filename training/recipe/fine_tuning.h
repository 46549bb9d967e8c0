// The keys of fine-tuning that are more than a number: the modules that get an adapter, groups of
// parameters, and the modules that are frozen because they are not sharded; and those of Muon,
// which treats parameters in two ways.
#pragma once

#include "base/quantized.h"
#include "engine/optim/muon.h"
#include "training/recipe/schema.h"

namespace tessera::training {

// Checks these keys against others. Error(configuration).
void validate_fine_tuning(const Recipe& recipe);
void validate_quantized_base(const Recipe& recipe);
void validate_muon(const Recipe& recipe);

// Their rows in the table.
RecipeKey target_modules_key();
RecipeKey rank_pattern_key();
RecipeKey alpha_pattern_key();
RecipeKey ignored_modules_key();
RecipeKey parameter_groups_key();
std::vector<RecipeKey> muon_keys();

// The format of the frozen weights under adapters: that of the recipe or, if it has none, of the
// step in model.adapter.
std::optional<QuantizedFormat> quantized_base(const Recipe& recipe);

// The options of train.optimizer: muon, without groups and filters.
optim::MuonOptions muon_options(const TrainRecipe& train);

}  // namespace tessera::training
