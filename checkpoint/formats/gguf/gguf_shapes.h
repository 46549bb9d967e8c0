// The tensors that a model must have to be written as a GGUF file.
#pragma once

#include <vector>

#include "checkpoint/formats/gguf/gguf_config.h"

namespace tessera::checkpoint::formats {

// llama.cpp needs every tensor of every layer, with the sizes of the settings. Error(checkpoint)
// names a tensor that is missing, that config.json does not describe, or of another shape. The
// tensors have llama.cpp's names, and matrices are [out, in].
void check_gguf_tensors(const GgufModel& model, const std::vector<GgufTensor>& tensors);

}  // namespace tessera::checkpoint::formats
