// A checkpoint whose weights are the means of several checkpoints' weights.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/formats/format.h"

namespace tessera::checkpoint {

struct AveragedInput {
  std::string path;  // for messages
  std::unique_ptr<formats::Source> source;
};

// Has the names, files and order of the first input, and its model's tensors alone. A floating
// tensor is the sum of the inputs in their order, divided by their number, in fp32 (in fp64 if an
// input has it in fp64), rounded once to `dtype` or to the first input's dtype. Other tensors must
// be equal in every byte: read() throws Error(checkpoint) where they differ.
//
// Names are compared without the prefixes of wrappers. Throws Error(checkpoint) with the tensor and
// the two paths if one has a tensor that another has not, or has in another shape.
// Memory beyond the inputs': two blocks of 1 MiB.
std::unique_ptr<formats::Source> open_averaged(std::vector<AveragedInput> inputs,
                                               std::optional<DType> dtype);

}  // namespace tessera::checkpoint
