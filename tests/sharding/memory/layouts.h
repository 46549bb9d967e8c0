// The expected layouts of a model, computed independently of the runtime, for comparison with
// memory and communication.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "sharding/memory/layout.h"
#include "sharding/policy/wrap_policy.h"

namespace tessera::testing {

struct ExpectedUnit {
  std::string name;
  std::vector<ParameterSpec> specs;
  [[nodiscard]] UnitLayout layout(int shards) const { return {specs, shards}; }
};

inline std::vector<ExpectedUnit> expected_units(nn::Module& root, const WrapPolicy& policy,
                                                std::optional<DType> param_dtype = {}) {
  std::vector<ExpectedUnit> units;
  for (const UnitModule& unit : choose_units(root, policy)) {
    units.push_back({unit.name, {}});
    for (const auto& parameter : unit.parameters) {
      const DType own = parameter.tensor.dtype();
      const bool trainable = parameter.tensor.requires_grad();
      units.back().specs.push_back({parameter.name, parameter.tensor.shape(),
                                    trainable ? float32 : own, param_dtype.value_or(own),
                                    trainable});
    }
  }
  return units;
}

// From a rank's first element of each trainable segment to its last: the extent of its moments.
inline std::size_t extent_of(const UnitLayout& layout, int shard) {
  std::size_t sum = 0;
  for (std::size_t s = 0; s < layout.segments().size(); ++s) {
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    std::int64_t last = 0;
    for (const auto& slot : layout.slots()) {
      const ElementRange part = layout.local_of(slot, shard);
      if (slot.segment != static_cast<int>(s) || !slot.spec.trainable || part.count == 0) continue;
      first = std::min(first, slot.range.first + part.first);
      last = std::max(last, slot.range.first + part.end());
    }
    if (last > 0) sum += static_cast<std::size_t>(last - first);
  }
  return sum;
}

template <class T>
T round_up(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace tessera::testing
