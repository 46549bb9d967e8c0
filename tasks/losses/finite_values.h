// Whether a tensor has only finite values.
#pragma once

#include <string>

#include "engine/tensor.h"

namespace tessera::tasks {

// Waits for the device. Takes no memory of the size of x.
bool all_finite(const Tensor& x);

// The first value that is not finite and its place: "nan at [3, 0, 17] of [8, 256, 50257]". Empty
// if there is none. Copies x to the host.
std::string first_not_finite(const Tensor& x);

}  // namespace tessera::tasks
