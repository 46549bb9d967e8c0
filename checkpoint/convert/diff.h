// Compares two checkpoints of any formats, tensor by tensor, in a stream.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/format.h"

namespace tessera::checkpoint {

struct DiffOptions {
  // The largest difference of two elements that counts as none.
  double tolerance = 0;
  bool weights_only = false;  // leave optimizer state out
  std::function<void(const ConvertProgress&)> progress = {};
  std::function<bool()> stop = {};  // asked often; true ends it with Error(runtime)
};

enum class Difference : std::uint8_t { none, only_in_first, only_in_second, shape, values };
const char* name_of(Difference difference);

// A tensor of either checkpoint, without the prefixes of wrappers in its name.
struct TensorDiff {
  formats::Part part = formats::Part::model;
  std::string name;
  Difference difference = Difference::none;
  // "BF16 [2, 3]"; empty where the checkpoint does not have the tensor.
  std::string first, second;
  // For tensors of one shape, in fp64. The largest difference of two elements is infinite if one of
  // them alone is not a number, or infinite.
  double first_norm = 0, second_norm = 0;
  double largest = 0;
};

struct DiffReport {
  std::string first, first_format;  // the step folder if a folder of steps was given
  std::string second, second_format;
  std::vector<TensorDiff> tensors;  // sorted by part and name
  std::size_t different = 0;        // of them
};

// Names, shapes and values are compared, and dtypes are reported: equal values are equal in any
// dtype. Memory: the lists of tensors and a few MiB.
DiffReport diff(const std::filesystem::path& first, const std::filesystem::path& second,
                const DiffOptions& options);

}  // namespace tessera::checkpoint
