// The GPU's backend: engine/cuda in a build with CUDA, else engine/backends/cuda_absent.cpp.
// Exactly one of the two is linked.
#pragma once

#include "engine/device/backend.h"

namespace tessera {

const Backend& cuda_backend();

}  // namespace tessera
