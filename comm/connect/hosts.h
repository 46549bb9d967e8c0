// Ranks that are processes of several hosts, on CPUs: shared memory inside a host, TCP or MPI
// between hosts (backends `shm+tcp` and `shm+mpi`).
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/world.h"

namespace tessera::comm {

// What the options say, else TESSERA_BACKEND. Throws Error(configuration) for another word.
HostsBackend hosts_backend(const ConnectOptions& options);

// As connect() (world.h) says.
std::shared_ptr<Communicator> connect_hosts(const World& world, const ConnectOptions& options);

}  // namespace tessera::comm
