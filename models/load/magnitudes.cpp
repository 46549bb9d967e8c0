// Finds the layers of each unit, and writes this rank's part of their norms.
#include "models/load/magnitudes.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/nn/lora.h"
#include "engine/tensor_ops.h"

namespace tessera::models {
namespace {

struct ScaledLayer {
  std::string name;
  nn::LinearImpl* layer;
};

bool is_in(std::string_view name, std::string_view outer) {
  if (outer.empty() || name == outer) return true;
  return name.starts_with(outer) && name[outer.size()] == '.';
}

// The innermost unit around a module has its parameters.
std::string unit_of(const std::string& module, const std::vector<std::string>& units) {
  std::string found;
  for (const std::string& unit : units) {
    if (is_in(module, unit) && unit.size() > found.size()) found = unit;
  }
  return found;
}

}  // namespace

void begin_magnitudes(ShardedModel& sharded, nn::Module& module) {
  const std::vector<std::string> units = sharded.units();
  std::map<std::string, std::vector<ScaledLayer>> of_unit;
  for (const auto& [name, part] : module.named_modules()) {
    auto* const layer = dynamic_cast<nn::LinearImpl*>(part);
    if (layer == nullptr || !layer->has_dora()) continue;
    of_unit[unit_of(name, units)].push_back({name, layer});
  }
  if (of_unit.empty()) return;
  const NoGradGuard no_grad;
  std::map<std::string, ShardedParameter> parts;
  for (ShardedParameter& parameter : sharded.sharded_parameters()) {
    if (is_lora_magnitude(parameter.name)) parts.emplace(parameter.name, std::move(parameter));
  }
  for (const auto& [unit, layers] : of_unit) {
    sharded.unshard(unit);
    std::vector<std::pair<Tensor, Tensor>> written;  // a rank's part, and its values
    for (const ScaledLayer& scaled : layers) {
      const auto found = parts.find(scaled.name + ".lora_magnitude_vector");
      TESSERA_REQUIRE(found != parts.end(),
                      "begin_magnitudes: {} is not a layer of the module that was sharded",
                      scaled.name);
      const ShardedParameter& part = found->second;
      const Tensor norms = scaled.layer->adapted_norms();
      if (part.local.elements() == 0) continue;
      written.emplace_back(part.local, cast(narrow(norms, 0, part.first, part.local.elements()),
                                            part.local.dtype()));
    }
    sharded.reshard(unit);
    for (auto& [local, values] : written) local.copy_from(values);
  }
}

}  // namespace tessera::models
