// Which of a model's tensors a load quantises (base/quantized.h).
#pragma once

#include <string>
#include <vector>

#include "checkpoint/state/state.h"
#include "models/model.h"

namespace tessera::models {

// For a model whose layers hold codes (quantize_frozen(), engine/nn/lora.h): their tensors take the
// codes of the stored weights.
void take_codes(const Model& model, std::vector<checkpoint::LogicalTensor>& tensors);

// For a model of floating weights that computes with the adapters of a folder: the tensors of its
// base (base_tensors(), adapter.h). If the adapters were trained over codes, those of the layers
// that were quantised take the numbers of these. `adapter` may be empty: there are none.
std::vector<checkpoint::LogicalTensor> tensors_under(
    const std::string& adapter, const Model& model,
    const std::vector<checkpoint::LogicalTensor>& tensors);

}  // namespace tessera::models
