// Ranks on GPUs of one or several hosts: NCCL. The library is loaded when it is first asked for, so
// a program that was built with it starts where it is absent.
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
// MPI (TESSERA_BOOTSTRAP=mpi, in programs that mpirun started). Gathers and reductions are NCCL's,
// on communicators of their own; small messages go over the hosts' network.
//
// Bits of reductions are NCCL's, unless options.fixed_order asks for the order of the other
// backends. Throws as connect() does, and Error(configuration) where NCCL or the GPU cannot be
// used.
std::shared_ptr<Communicator> connect_nccl(const World& world, const ConnectOptions& options);

}  // namespace tessera::comm
