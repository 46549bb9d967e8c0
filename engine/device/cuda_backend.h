// The GPU's backend: engine/cuda where the build has CUDA, engine/backends/cuda_absent.cpp where it
// has not. Exactly one of the two is linked.
#pragma once

#include "engine/device/backend.h"

namespace tessera {

const Backend& cuda_backend();

}  // namespace tessera
