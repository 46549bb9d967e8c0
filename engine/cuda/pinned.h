// Page-locked host memory, which GPUs read and write directly.
#pragma once

#include "engine/device/memory.h"

namespace tessera::cuda {

// Locking pages costs milliseconds: what is freed is kept for the next one of its size. Lives as
// long as anything that was allocated from it.
const std::shared_ptr<MemoryPool>& pinned_pool();

}  // namespace tessera::cuda
