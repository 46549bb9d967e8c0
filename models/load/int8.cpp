// Replaces the weights of layers that a folder stores as 8-bit integers.
#include "models/load/int8.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/load/int8.h"
#include "engine/nn/layers.h"
#include "engine/nn/lora.h"
#include "engine/nn/output_head.h"
#include "engine/ops/int8_linear.h"

namespace tessera::models {

std::size_t keep_int8_layers(Model& model, const std::string& folder, Device device,
                             const std::vector<std::string>& modules_to_save) {
  if (device.type != DeviceType::cpu) return 0;
  const auto stored = checkpoint::int8_weights(folder);
  if (stored.empty()) return 0;
  const HuggingFaceNames names = model.hugging_face_names();
  std::size_t kept = 0;
  for (const auto& [name, module] : model.named_modules()) {
    auto* const layer = dynamic_cast<nn::LinearImpl*>(module);
    if (layer == nullptr || nn::is_output_head(name)) continue;
    if (layer->has_dora()) continue;  // the norms of its rows are those of numbers
    if (is_in_module_to_save(name + ".weight", modules_to_save)) continue;
    const std::vector<std::string> aliases = names.aliases(name + ".weight");
    const Tensor weight = layer->stored_weight();
    const auto sizes = weight.shape().sizes();
    // A weight of another shape is refused where it is loaded, with both shapes as they are.
    const bool is_int8 = std::any_of(aliases.begin(), aliases.end(), [&](const std::string& alias) {
      const auto found = stored.find(alias);
      return found != stored.end() &&
             std::equal(sizes.begin(), sizes.end(), found->second.begin(), found->second.end());
    });
    if (!is_int8) continue;
    TESSERA_REQUIRE(weight.is_meta(), "keep_int8_layers: '{}' has a weight already", name);
    const bool out_first = layer->layout() == WeightLayout::out_in;
    const Shape shape =
        int8_weight_shape(weight.size(out_first ? 1 : 0), weight.size(out_first ? 0 : 1));
    Tensor integers = Tensor::empty(shape, uint8, Device::meta());
    layer->replace_own_parameter(weight, integers);
    ++kept;
  }
  return kept;
}

}  // namespace tessera::models
