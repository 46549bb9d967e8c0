// Weights that a Hugging Face folder stores as 8-bit integers (compressed-tensors,
// "int-quantized"): decoded, or as they are for products with integers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/load/weight_decoder.h"

namespace tessera::checkpoint {

// `weight` is I8 [rows, columns]; `scales` are F32, F16 or BF16: one for each row ([rows, 1],
// [rows]), for each column ([1, columns]: GPT-2's layout, [in, out]), or one for all ([1], []). An
// element is its integer times its scale in fp32, rounded once to the scales' dtype.
// Error(checkpoint) for other shapes and dtypes, and when a scale that is read is not finite.
// `rounds_activations`: the model is made for products of integers, so as_int8_rows() gives one.
std::unique_ptr<WeightDecoder> make_int8_decoder(FileTensor weight, FileTensor scales,
                                                 std::shared_ptr<DecodeBuffers> buffers,
                                                 bool rounds_activations);

// The names and shapes, as they are stored, of the weights in a folder whose products are those of
// integers, or none. Reads headers only.
std::map<std::string, std::vector<std::int64_t>> int8_weights(const std::filesystem::path& folder);

// Error(checkpoint) with the way out if a folder that is to be trained has such weights. `folder`
// may have other contents than weights; these are not looked at.
void refuse_int8_training(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
