// Choosing what is recomputed.
#include "sharding/activation_checkpointing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "kernels/base/error.h"

namespace tessera {
namespace {

std::vector<UnitModule> modules_of_classes(nn::Module& root,
                                           const std::vector<std::string>& classes) {
  std::vector<UnitModule> chosen;
  std::set<std::string> there;
  for (const auto& [name, module] : root.named_modules()) {
    there.insert(module->class_name());
    if (std::find(classes.begin(), classes.end(), module->class_name()) == classes.end()) continue;
    TESSERA_CHECK(!name.empty(), ErrorCode::configuration,
                  "activation_checkpointing_cls: {} is the whole model, which is not called as "
                  "another module's child; name classes inside of it",
                  module->class_name());
    chosen.push_back({name, module, {}});
  }
  for (const std::string& name : classes) {
    TESSERA_CHECK(
        there.contains(name), ErrorCode::configuration,
        "activation_checkpointing_cls: no module of class {} in the model; its classes are {}",
        name, fmt::join(there, ", "));
  }
  return chosen;
}

// A module comes before those inside it.
void drop_inner(std::vector<UnitModule>& modules) {
  std::string outer;
  std::erase_if(modules, [&](const UnitModule& module) {
    if (!outer.empty() && module.name.starts_with(outer)) return true;
    outer = module.name + ".";
    return false;
  });
}

}  // namespace

std::vector<UnitModule> choose_recomputed(nn::Module& root, const std::vector<UnitModule>& units,
                                          const ShardingOptions& options) {
  const auto& classes = options.activation_checkpointing_cls;
  const int every = options.activation_checkpointing_every;
  TESSERA_CHECK(every >= 1, ErrorCode::configuration,
                "activation_checkpointing_every: {} is not a positive number", every);
  if (options.activation_checkpointing == ActivationCheckpointing::none) {
    TESSERA_CHECK(
        classes.empty() && every == 1, ErrorCode::configuration,
        "{} says nothing without activation_checkpointing",
        classes.empty() ? "activation_checkpointing_every" : "activation_checkpointing_cls");
    return {};
  }
  std::vector<UnitModule> all = classes.empty() ? std::vector(units.begin() + 1, units.end())
                                                : modules_of_classes(root, classes);
  TESSERA_CHECK(!all.empty(), ErrorCode::configuration,
                "activation_checkpointing works a unit at a time, and this wrap policy makes no "
                "unit but the root: choose another one, or name classes in "
                "activation_checkpointing_cls");
  drop_inner(all);
  std::vector<UnitModule> chosen;
  for (std::size_t i = 0; i < all.size(); i += static_cast<std::size_t>(every))
    chosen.push_back(all[i]);
  return chosen;
}

RecomputedModules::RecomputedModules(const std::vector<UnitModule>& modules,
                                     ActivationCheckpointing how) {
  RecomputeOptions options;
  if (how == ActivationCheckpointing::selective) options.keep = ops_worth_keeping;
  for (const UnitModule& chosen : modules) {
    if (chosen.module->recompute_options()) continue;
    chosen.module->set_recompute(options);
    modules_.push_back(chosen.module);
  }
}

RecomputedModules::~RecomputedModules() {
  for (nn::Module* module : modules_) module->set_recompute(std::nullopt);
}

}  // namespace tessera
