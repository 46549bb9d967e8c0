// connect_nccl over given functions: the machine's NCCL, or a test's replacement.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/world.h"

namespace tessera::cuda {
struct NcclFunctions;
}

namespace tessera::comm {

// `functions` live as long as the communicator.
std::shared_ptr<Communicator> connect_nccl_with(const cuda::NcclFunctions& functions,
                                                const World& world, const ConnectOptions& options);

}  // namespace tessera::comm
