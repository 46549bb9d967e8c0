// Chooses the modules that are recomputed.
#include "sharding/units/activation_checkpointing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace tessera {
namespace {

// Selects, from modules in the order of the tree, those that lie inside no selected one.
class Outermost {
 public:
  bool takes(const std::string& name) {
    if (!outer_.empty() && name.starts_with(outer_)) return false;
    outer_ = name + ".";
    return true;
  }

 private:
  std::string outer_;
};

// A fused operation takes the parameters of a module and never calls it; a module without
// parameters is called.
bool is_called(const ModuleTree::Entry& entry) {
  return entry.module->has_forward() &&
         !(entry.inside_fused && !entry.module->named_parameters().empty());
}

// The classes to name instead of a module that is not called.
std::set<std::string> called_instead(const ModuleTree& tree, const ModuleTree::Entry& entry) {
  std::set<std::string> classes;
  if (entry.inside_fused) {
    const ModuleTree::Entry* around = &entry;
    while (around->depth > 0 && (around->inside_fused || !around->module->has_forward()))
      around = &tree.modules()[around->around];
    if (around->depth > 0) classes.insert(around->module->class_name());
    return classes;
  }
  Outermost outermost;
  for (const ModuleTree::Entry& inside : tree.modules()) {
    if (inside.name.starts_with(entry.name + ".") && is_called(inside) &&
        outermost.takes(inside.name))
      classes.insert(inside.module->class_name());
  }
  return classes;
}

// A module that is not called would never be recomputed, and no error would show it.
void check_called(const ModuleTree& tree, const ModuleTree::Entry& entry) {
  if (is_called(entry)) return;
  const std::set<std::string> instead = called_instead(tree, entry);
  fail(ErrorCode::configuration, "activation_checkpointing_cls: {} ({}) {}; {}",
       entry.module->class_name(), entry.name,
       entry.inside_fused ? "is not called: a module around it uses its parameters in a fused "
                            "operation"
                          : "has no forward that would be called",
       instead.empty() ? "leave it out" : fmt::format("name {} instead", fmt::join(instead, ", ")));
}

std::vector<UnitModule> modules_of_classes(nn::Module& root,
                                           const std::vector<std::string>& classes) {
  const ModuleTree tree(root);
  std::vector<UnitModule> chosen;
  std::set<std::string> there;
  Outermost outermost;
  for (const ModuleTree::Entry& entry : tree.modules()) {
    const std::string name = entry.module->class_name();
    there.insert(name);
    if (std::find(classes.begin(), classes.end(), name) == classes.end()) continue;
    TESSERA_CHECK(entry.depth > 0, ErrorCode::configuration,
                  "activation_checkpointing_cls: {} is the whole model, which is not called as "
                  "another module's child; name classes inside of it",
                  name);
    if (!outermost.takes(entry.name)) continue;  // recomputed with the module around it
    check_called(tree, entry);
    chosen.push_back({entry.name, entry.module, {}});
  }
  for (const std::string& name : classes) {
    TESSERA_CHECK(
        there.contains(name), ErrorCode::configuration,
        "activation_checkpointing_cls: no module of class {} in the model; its classes are {}",
        name, fmt::join(there, ", "));
  }
  return chosen;
}

std::vector<UnitModule> outermost_units(const std::vector<UnitModule>& units) {
  std::vector<UnitModule> chosen;
  Outermost outermost;
  for (std::size_t i = 1; i < units.size(); ++i) {
    if (outermost.takes(units[i].name)) chosen.push_back(units[i]);
  }
  return chosen;
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
        "{} requires activation_checkpointing",
        classes.empty() ? "activation_checkpointing_every" : "activation_checkpointing_cls");
    return {};
  }
  const std::vector<UnitModule> all =
      classes.empty() ? outermost_units(units) : modules_of_classes(root, classes);
  TESSERA_CHECK(!all.empty(), ErrorCode::configuration,
                "activation_checkpointing works a unit at a time, and this wrap policy makes no "
                "unit except the root: choose another one, or name classes in "
                "activation_checkpointing_cls");
  std::vector<UnitModule> chosen;
  for (std::size_t i = 0; i < all.size(); i += static_cast<std::size_t>(every))
    chosen.push_back(all[i]);
  return chosen;
}

RecomputedModules::RecomputedModules(const std::vector<UnitModule>& modules,
                                     ActivationCheckpointing how,
                                     std::shared_ptr<ActivationOffload> offload) {
  RecomputeOptions options;
  options.offload = std::move(offload);
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
