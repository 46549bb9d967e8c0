// Which modules become units. The root is always one and holds what no other unit does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/policy/ignored_modules.h"
#include "sharding/policy/module_tree.h"

namespace tessera {

enum class WrapKind : std::uint8_t {
  none,         // NO_WRAP: the root alone
  transformer,  // TRANSFORMER_BASED_WRAP: every module of the named classes
  size,  // SIZE_BASED_WRAP: modules with a forward that reach min_parameters, innermost first
  list,  // modules by full name
};

struct WrapPolicy {
  WrapKind kind = WrapKind::none;
  std::vector<std::string> names;  // class names, or module names of a list
  std::int64_t min_parameters = 100'000'000;

  static WrapPolicy none() { return {}; }
  static WrapPolicy transformer(std::vector<std::string> classes) {
    return {WrapKind::transformer, std::move(classes), 0};
  }
  static WrapPolicy size(std::int64_t min_parameters) {
    return {WrapKind::size, {}, min_parameters};
  }
  static WrapPolicy list(std::vector<std::string> modules) {
    return {WrapKind::list, std::move(modules), 0};
  }
};

// The modules that become units, root first, then in the order of the tree, with the parameters
// that each owns: those whose innermost unit around all places it is. A parameter that only
// modules of one unit register or read is that unit's; one that is registered in several units
// (tied, or its module is in both) or read by another goes to the innermost unit around all.
//
// A module without a forward (a list), or with parameters that a module around it uses in a fused
// operation, is never chosen by size, and refused when it is named. A class or module that is
// nowhere in the tree is an Error(configuration) that lists what there is.
//
// Ignored modules become no units, and no unit has their parameters; to list one is refused.
struct UnitModule {
  std::string name;  // "" for the root
  nn::Module* module = nullptr;
  std::vector<OwnedParameter> parameters;
};
std::vector<UnitModule> choose_units(nn::Module& root, const WrapPolicy& policy,
                                     const IgnoredModules& ignored = {});

}  // namespace tessera
