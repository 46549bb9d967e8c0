// Whether a tensor has only finite values.
#pragma once

#include "engine/tensor.h"

namespace tessera::tasks {

// Waits for the device. Takes no memory of the size of x.
bool all_finite(const Tensor& x);

}  // namespace tessera::tasks
