// NumPy's .npy files: an array with its dtype and shape.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "engine/tensor.h"

namespace tessera {

// Writes x, from any device; the file gets its name when it is complete. NumPy has no bfloat16: it
// is a std::logic_error, so cast it first. Error(configuration), or one of a full disk, if the file
// cannot be written. Needs memory for a copy of the values.
void save_npy(const std::filesystem::path& path, const Tensor& x);

// Reads an array of numpy.save() to a new tensor on `device`. Error(data) with the path for a
// damaged file, and for what a tensor cannot hold: other dtypes, another byte order, columns first.
Tensor load_npy(const std::filesystem::path& path, Device device = default_device());

// The beginning of a file of version 1.0, up to the first value. Its size is a multiple of 64 and
// at least `least_bytes`: a file whose shape is known at its end reserves that place first.
// std::logic_error for a dtype that NumPy lacks.
std::string npy_header(DType dtype, const Shape& shape, std::size_t least_bytes = 0);

}  // namespace tessera
