// A model whose linear layers' weights become 8-bit integers while they are read, as
// compressed-tensors stores them ("int-quantized"): the quantisation of `tessera convert --dtype
// int8`.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint {

// `layers` is the result of ConvertOptions::lies_in_out for this model: its linear layers. The head
// (engine/nn/output_head.h) stays as it is. A weight `X.weight` becomes I8 of the same shape, and
// gets `X.weight_scale`, F32: [out, 1], or [1, out] where the weight lies as [in, out] (GPT-2). The
// scale of an output is its largest magnitude / 127 (1 if that is 0), its integers are round(w /
// scale), halves to even. config.json gets a quantization_config. Moments are left behind.
//
// Error(checkpoint) for a model without such layers or with experts, and, while it is read, for a
// weight that is not finite. Each weight is read twice. Memory: the scales of all, and a few MiB.
std::unique_ptr<formats::Source> open_int8(std::unique_ptr<formats::Source> source,
                                           const std::map<std::string, bool>& layers);

}  // namespace tessera::checkpoint
