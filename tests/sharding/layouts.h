// The layouts that a model must have, computed apart from the runtime: what memory and
// communication are compared with.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sharding/layout.h"
#include "sharding/wrap_policy.h"

namespace tessera::testing {

struct ExpectedUnit {
  std::string name;
  std::vector<ParameterSpec> specs;
  [[nodiscard]] UnitLayout layout(int shards) const { return {specs, shards}; }
};

inline std::vector<ExpectedUnit> expected_units(nn::Module& root, const WrapPolicy& policy,
                                                std::optional<DType> param_dtype = {}) {
  const auto modules = choose_units(root, policy);
  const auto owned = assign_parameters(root, modules);
  std::vector<ExpectedUnit> units;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    units.push_back({modules[i].name, {}});
    for (const auto& parameter : owned[i]) {
      units.back().specs.push_back({parameter.name, parameter.shape, float32,
                                    param_dtype.value_or(float32),
                                    parameter.tensor.requires_grad()});
    }
  }
  return units;
}

template <class T>
T round_up(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace tessera::testing
