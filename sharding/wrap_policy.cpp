// Choosing units and dealing out the parameters.
#include "sharding/wrap_policy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "kernels/base/error.h"

namespace tessera {
namespace {

bool is_below(const std::string& name, const std::string& ancestor) {
  return ancestor.empty() || name == ancestor || name.starts_with(ancestor + ".");
}

std::int64_t count_parameters(const nn::Module& module) {
  std::int64_t total = 0;
  for (const auto& parameter : module.named_parameters()) total += parameter.shape.elements();
  return total;
}

// Innermost first: a module becomes a unit when what is left of it (units below taken out) reaches
// the minimum.
std::int64_t choose_by_size(nn::Module& module, const std::string& name, std::int64_t minimum,
                            std::set<std::string>& chosen) {
  std::int64_t taken = 0;
  if (!module.is_indivisible()) {
    for (const auto& [child_name, child] : module.children()) {
      taken += choose_by_size(*child, name.empty() ? child_name : name + "." + child_name, minimum,
                              chosen);
    }
  }
  const std::int64_t rest = count_parameters(module) - taken;
  if (rest < minimum || name.empty()) return taken;
  chosen.insert(name);
  return taken + rest;
}

bool inside_indivisible(const std::vector<std::pair<std::string, nn::Module*>>& modules,
                        const std::string& name) {
  return std::any_of(modules.begin(), modules.end(), [&](const auto& entry) {
    return entry.second->is_indivisible() && entry.first != name && is_below(name, entry.first);
  });
}

}  // namespace

std::vector<UnitModule> choose_units(nn::Module& root, const WrapPolicy& policy) {
  const auto modules = root.named_modules();
  std::set<std::string> chosen;
  if (policy.kind == WrapKind::transformer) {
    TESSERA_CHECK(!policy.names.empty(), ErrorCode::configuration,
                  "TRANSFORMER_BASED_WRAP needs the class name of the transformer's layer");
    std::set<std::string> classes;
    for (const auto& [name, module] : modules) {
      classes.insert(module->class_name());
      const bool wanted = std::find(policy.names.begin(), policy.names.end(),
                                    module->class_name()) != policy.names.end();
      if (wanted && !name.empty()) chosen.insert(name);
    }
    for (const std::string& name : policy.names) {
      TESSERA_CHECK(
          classes.contains(name), ErrorCode::configuration,
          "TRANSFORMER_BASED_WRAP: no module of class {} in the model; its classes are {}", name,
          fmt::join(classes, ", "));
    }
  } else if (policy.kind == WrapKind::list) {
    for (const std::string& wanted : policy.names) {
      const bool found = std::any_of(modules.begin(), modules.end(),
                                     [&](const auto& entry) { return entry.first == wanted; });
      std::vector<std::string> names;
      for (const auto& entry : modules) names.push_back(entry.first);
      TESSERA_CHECK(found, ErrorCode::configuration,
                    "no module \"{}\" in the model; its modules are {}", wanted,
                    fmt::join(names, ", "));
      if (!wanted.empty()) chosen.insert(wanted);
    }
  } else if (policy.kind == WrapKind::size) {
    TESSERA_CHECK(policy.min_parameters > 0, ErrorCode::configuration,
                  "SIZE_BASED_WRAP needs a positive number of parameters, got {}",
                  policy.min_parameters);
    choose_by_size(root, "", policy.min_parameters, chosen);
  }
  std::vector<UnitModule> units{{"", &root}};
  for (const auto& [name, module] : modules) {
    if (!chosen.contains(name)) continue;
    TESSERA_CHECK(!inside_indivisible(modules, name), ErrorCode::configuration,
                  "module {} cannot be a unit: a module around it uses its parameters in a fused "
                  "operation; wrap that one",
                  name);
    units.push_back({name, module});
  }
  return units;
}

std::vector<std::vector<nn::NamedParameter>> assign_parameters(
    nn::Module& root, const std::vector<UnitModule>& units) {
  // Every place where a parameter is registered, as the name of the module that holds it.
  std::unordered_map<const void*, std::vector<std::string>> places;
  for (const auto& [module_name, module] : root.named_modules()) {
    for (const auto& [name, tensor] : module->own_parameters())
      places[tensor.impl().get()].push_back(module_name);
  }
  std::vector<std::vector<nn::NamedParameter>> owned(units.size());
  for (const auto& parameter : root.named_parameters()) {
    std::size_t best = 0;  // the root is around everything
    for (std::size_t i = 1; i < units.size(); ++i) {
      const auto& where = places[parameter.tensor.impl().get()];
      const bool around_all =
          std::all_of(where.begin(), where.end(),
                      [&](const std::string& place) { return is_below(place, units[i].name); });
      if (around_all && units[i].name.size() >= units[best].name.size()) best = i;
    }
    owned[best].push_back(parameter);
  }
  return owned;
}

}  // namespace tessera
