// Chooses units and distributes the parameters.
#include "sharding/policy/wrap_policy.h"

#include <fmt/ranges.h>

#include <cstddef>
#include <set>
#include <unordered_map>

#include "base/error.h"

namespace tessera {
namespace {

using Chosen = std::vector<bool>;  // by index in the tree

void choose_classes(const ModuleTree& tree, const WrapPolicy& policy, Chosen& chosen) {
  TESSERA_CHECK(!policy.names.empty(), ErrorCode::configuration,
                "TRANSFORMER_BASED_WRAP needs the class name of the transformer's layer");
  const std::set<std::string> wanted(policy.names.begin(), policy.names.end());
  std::set<std::string> classes;
  for (std::size_t i = 0; i < tree.modules().size(); ++i) {
    const std::string name = tree.modules()[i].module->class_name();
    classes.insert(name);
    chosen[i] = wanted.contains(name);
  }
  for (const std::string& name : policy.names) {
    TESSERA_CHECK(classes.contains(name), ErrorCode::configuration,
                  "TRANSFORMER_BASED_WRAP: no module of class {} in the model; its classes are {}",
                  name, fmt::join(classes, ", "));
  }
}

void choose_listed(const ModuleTree& tree, const WrapPolicy& policy, const IgnoredModules& ignored,
                   Chosen& chosen) {
  std::unordered_map<std::string, std::size_t> by_name;
  std::vector<std::string> names;
  for (const auto& entry : tree.modules()) {
    by_name.emplace(entry.name, by_name.size());
    names.push_back(entry.name);
  }
  for (const std::string& wanted : policy.names) {
    const auto found = by_name.find(wanted);
    TESSERA_CHECK(found != by_name.end(), ErrorCode::configuration,
                  "no module \"{}\" in the model; its modules are {}", wanted,
                  fmt::join(names, ", "));
    TESSERA_CHECK(!ignored.contain(tree.modules()[found->second].module), ErrorCode::configuration,
                  "module {} is to be a unit and is ignored; leave it out of one of the lists",
                  wanted);
    chosen[found->second] = true;
  }
}

// Innermost first: a module becomes a unit when the parameters that it alone is around, without
// those of units inside, reach the minimum. A module that cannot be a unit leaves its parameters to
// the module around it.
void choose_by_size(const ModuleTree& tree, std::int64_t minimum, const IgnoredModules& ignored,
                    Chosen& chosen) {
  TESSERA_CHECK(minimum > 0, ErrorCode::configuration,
                "SIZE_BASED_WRAP needs a positive number of parameters, got {}", minimum);
  std::vector<std::int64_t> rest(tree.modules().size(), 0);
  for (const OwnedParameter& parameter : tree.parameters()) {
    if (!ignored.contain(parameter)) {
      rest[tree.around_all(parameter)] += parameter.tensor.elements();
    }
  }
  for (auto it = tree.outermost_first().rbegin(); it != tree.outermost_first().rend(); ++it) {
    const ModuleTree::Entry& entry = tree.modules()[*it];
    if (rest[*it] >= minimum && entry.module->has_forward() && !entry.inside_fused) {
      chosen[*it] = true;
    } else if (*it != 0) {
      rest[entry.around] += rest[*it];
    }
  }
}

}  // namespace

std::vector<UnitModule> choose_units(nn::Module& root, const WrapPolicy& policy,
                                     const IgnoredModules& ignored) {
  const ModuleTree tree(root);
  Chosen chosen(tree.modules().size(), false);
  switch (policy.kind) {
    case WrapKind::none:
      break;
    case WrapKind::transformer:
      choose_classes(tree, policy, chosen);
      break;
    case WrapKind::list:
      choose_listed(tree, policy, ignored, chosen);
      break;
    case WrapKind::size:
      choose_by_size(tree, policy.min_parameters, ignored, chosen);
      break;
  }
  chosen[0] = true;
  std::vector<UnitModule> units;
  std::vector<std::size_t> unit_of(tree.modules().size(), 0);  // the innermost around each module
  for (std::size_t i = 0; i < tree.modules().size(); ++i) {
    const ModuleTree::Entry& entry = tree.modules()[i];
    if (ignored.contain(entry.module)) chosen[i] = false;
    if (!chosen[i]) continue;
    TESSERA_CHECK(!entry.inside_fused, ErrorCode::configuration,
                  "module {} cannot be a unit: a module around it uses its parameters in a fused "
                  "operation; wrap that one",
                  entry.name);
    TESSERA_CHECK(i == 0 || entry.module->has_forward(), ErrorCode::configuration,
                  "module {} ({}) cannot be a unit: it has no forward that would be called; wrap "
                  "the modules in it",
                  entry.name, entry.module->class_name());
    unit_of[i] = units.size();
    units.push_back({entry.name, entry.module, {}});
  }
  for (const std::size_t i : tree.outermost_first()) {
    if (!chosen[i]) unit_of[i] = unit_of[tree.modules()[i].around];
  }
  for (const OwnedParameter& parameter : tree.parameters()) {
    if (ignored.contain(parameter)) continue;
    units[unit_of[tree.around_all(parameter)]].parameters.push_back(parameter);
  }
  return units;
}

}  // namespace tessera
