// Finds linear layers by the names of their weights.
#include "models/load/quantized.h"

#include <map>
#include <optional>

#include "engine/nn/layers.h"
#include "engine/nn/output_head.h"
#include "models/load/adapter.h"

namespace tessera::models {
namespace {

using Layers = std::map<std::string, const nn::LinearImpl*>;

void collect_weights(const nn::Module& module, const std::string& name, Layers& layers) {
  if (const auto* layer = dynamic_cast<const nn::LinearImpl*>(&module)) {
    if (!nn::is_output_head(name)) layers[name + ".weight"] = layer;
  }
  for (const auto& [child, part] : module.children()) {
    collect_weights(*part, name.empty() ? child : name + "." + child, layers);
  }
}

template <class FormatOf>
void mark(const Model& model, std::vector<checkpoint::LogicalTensor>& tensors,
          const FormatOf& format_of) {
  Layers layers;
  collect_weights(model, "", layers);
  for (checkpoint::LogicalTensor& tensor : tensors) {
    const auto found = layers.find(tensor.name);
    if (found == layers.end()) continue;
    const Shape& shape = found->second->weight_shape();
    const auto format = format_of(tensor, *found->second);
    if (!format || !can_quantize(shape[0], shape[1])) continue;
    tensor.quantized = {*format, {shape.sizes().begin(), shape.sizes().end()}};
  }
}

}  // namespace

void take_codes(const Model& model, std::vector<checkpoint::LogicalTensor>& tensors) {
  mark(model, tensors,
       [](const checkpoint::LogicalTensor& /*tensor*/, const nn::LinearImpl& layer) {
         return layer.quantized();
       });
}

std::vector<checkpoint::LogicalTensor> tensors_under(
    const std::string& adapter, const Model& model,
    const std::vector<checkpoint::LogicalTensor>& tensors) {
  if (adapter.empty()) return tensors;
  std::vector<checkpoint::LogicalTensor> base =
      base_tensors(model, checkpoint::read_peft_config(adapter).modules_to_save, tensors);
  const auto format = checkpoint::quantized_base_of(adapter);
  if (!format) return base;
  mark(model, base, [&](const checkpoint::LogicalTensor& tensor, const nn::LinearImpl& /*layer*/) {
    return is_floating(tensor.dtype) ? format : std::nullopt;
  });
  return base;
}

}  // namespace tessera::models
