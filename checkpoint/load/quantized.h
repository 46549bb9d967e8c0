// Quantised weights of Hugging Face folders: which are decoded, and which are refused.
#pragma once

#include <filesystem>

#include "checkpoint/load/hugging_face.h"

namespace tessera::checkpoint {

// Replaces quantised tensors of `opened` by weights in bfloat16, under the model's names:
//   fp8    X with X_scale_inv (DeepSeek's blocks) or X_scale (compressed-tensors, FBGEMM): one
//   scale
//          for a block of [rows, columns], a row, or the whole tensor
//   MXFP4  X_blocks with X_scales (gpt-oss)
//   int8   X with X_scale (compressed-tensors, int8.h), in the scales' dtype
// Scales of activations are left out, because the decoded weights do not need them. The method is
// that of quantization_config in config.json of `folder` (empty: none), and blocks are of its
// weight_block_size, or 128 x 128 if it does not say. Error(checkpoint) for other methods, by name,
// and for scales that do not fit their weights.
void decode_quantized(HuggingFaceFolder& opened, const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
