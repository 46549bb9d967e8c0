// connect_nccl over given functions: the machine's NCCL, or a test's replacement.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/world.h"

namespace tessera::cuda {
struct NcclFunctions;
}

namespace tessera::comm {

// NCCL listens on an interface of the network, also for ranks of one node. Ranks with a control
// plane on the loopback keep NCCL there as well, unless the user has chosen: this sets
// NCCL_SOCKET_IFNAME if it is not set. Another thread that reads the environment meanwhile may read
// freed memory. A process whose ranks are threads therefore calls this before it starts them;
// connect_nccl_with() then changes nothing.
void keep_nccl_ports_on_this_node(const World& world);

// `functions` live as long as the communicator.
std::shared_ptr<Communicator> connect_nccl_with(const cuda::NcclFunctions& functions,
                                                const World& world, const ConnectOptions& options);

}  // namespace tessera::comm
