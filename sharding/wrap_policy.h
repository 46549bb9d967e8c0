// Which modules become units. The root is always one and holds what no other unit does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/module.h"

namespace tessera {

enum class WrapKind : std::uint8_t {
  none,         // NO_WRAP: the root alone
  transformer,  // TRANSFORMER_BASED_WRAP: every module of the named classes
  size,         // SIZE_BASED_WRAP: modules that reach min_parameters, innermost first
  list,         // modules by full name
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

// The modules that become units, root first, then in the order of the tree. A class or module that
// is nowhere in the tree is an Error(configuration) that lists what there is.
struct UnitModule {
  std::string name;  // "" for the root
  nn::Module* module = nullptr;
};
std::vector<UnitModule> choose_units(nn::Module& root, const WrapPolicy& policy);

// For each unit the parameters it owns: those registered in its modules and in no unit below. A
// parameter that is registered in several units (tied) goes to the innermost unit around all of
// them.
std::vector<std::vector<nn::NamedParameter>> assign_parameters(
    nn::Module& root, const std::vector<UnitModule>& units);

}  // namespace tessera
