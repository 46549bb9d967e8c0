// Page-locked host memory, which GPUs read and write directly.
#pragma once

#include "engine/device/memory.h"

namespace tessera::cuda {

// Locking pages costs milliseconds, so freed blocks are kept for the next one of their size. The
// pool lives as long as any block from it.
const std::shared_ptr<MemoryPool>& pinned_pool();

}  // namespace tessera::cuda
