// Which modules become units. The root is always one and holds all parameters that no other unit
// holds.
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
// that each owns. A parameter belongs to the innermost unit around all places that register or read
// it: a parameter that only modules of one unit use is that unit's; one that is registered in
// several units (tied, or its module is in both) or read by another goes to the innermost unit
// around all of them.
//
// A module without a forward (a list), or with parameters that a module around it uses in a fused
// operation, is never chosen by size, and naming it is an error. A class or module that is not in
// the tree is an Error(configuration) that lists those that are.
//
// Ignored modules do not become units, and no unit has their parameters; listing one is an error.
struct UnitModule {
  std::string name;  // "" for the root
  nn::Module* module = nullptr;
  std::vector<OwnedParameter> parameters;
};
std::vector<UnitModule> choose_units(nn::Module& root, const WrapPolicy& policy,
                                     const IgnoredModules& ignored = {});

}  // namespace tessera
