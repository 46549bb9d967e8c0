// Ranks that are processes on the CPUs of several nodes: shared memory inside a node, TCP or MPI
// between nodes (backends `shm+tcp` and `shm+mpi`).
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/world.h"

namespace tessera::comm {

// The backend of the options, else of TESSERA_BACKEND. Throws Error(configuration) for an unknown
// value.
HostsBackend hosts_backend(const ConnectOptions& options);

// Data between nodes must be encrypted (TESSERA_ENCRYPT). Throws Error(configuration) for a value
// other than 0 and 1.
bool encrypts_between_nodes();

// As connect() (world.h).
std::shared_ptr<Communicator> connect_nodes(const World& world, const ConnectOptions& options);

}  // namespace tessera::comm
