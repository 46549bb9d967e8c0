// Ranks on GPUs of one or several nodes: NCCL. The library is loaded at its first use, so a program
// that was built with it starts where it is absent.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/world.h"

namespace tessera::comm {

struct NcclStatus {
  bool in_build = false;
  bool available = false;
  std::string text;  // its version, or why it cannot be used
};
NcclStatus nccl_status();

// Connects the processes of a world, each with the GPU options.device (backend `nccl`). The ranks
// find each other over MASTER_ADDR and MASTER_PORT, a shared file (TESSERA_BOOTSTRAP=file:PATH) or
// MPI (TESSERA_BOOTSTRAP=mpi, in programs that mpirun started). NCCL gathers and reduces, on its
// own communicators; small messages use the nodes' network.
//
// Reductions have NCCL's bits, unless options.fixed_order requests the order of the other backends.
// Throws as connect() does, and Error(configuration) when NCCL or the GPU cannot be used.
std::shared_ptr<Communicator> connect_nccl(const World& world, const ConnectOptions& options);

}  // namespace tessera::comm
