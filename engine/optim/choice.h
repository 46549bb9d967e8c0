// The optimizers that a trainer makes from options. A new one is an alternative of OptimizerChoice;
// its own files have the options with their class (`Made`), settings_of() and, if it asks something
// of sharding, needs_of().
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "engine/optim/adafactor.h"
#include "engine/optim/adamw_8bit.h"
#include "engine/optim/muon.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule_free.h"
#include "engine/optim/settings.h"

namespace tessera::optim {

// A function makes an optimizer of the program's own; it is called once, and has to make the same
// one on every rank.
using OptimizerChoice =
    std::variant<AdamWOptions, LionOptions, SgdOptions, OptimizerFactory, MuonOptions,
                 AdamW8BitOptions, AdafactorOptions, ScheduleFreeAdamWOptions>;

std::unique_ptr<Optimizer> make_optimizer(const OptimizerChoice& choice,
                                          std::vector<nn::NamedParameter> parameters);
Settings settings_of_choice(const OptimizerChoice& choice);
ShardNeeds needs_of_choice(const OptimizerChoice& choice);

}  // namespace tessera::optim
