// How the processes of a job on one node find each other.
//
// Rank 0 listens on an abstract unix socket, whose name comes from the user, MASTER_ADDR,
// MASTER_PORT and the run id. The others connect and identify themselves; rank 0 answers each with
// the job's memory and a handle on every rank's process, or with the reason why it refuses the job.
// After that no socket is open.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "comm/file_descriptor.h"
#include "comm/world.h"

namespace tessera::comm {

// A rank's handles when all ranks have found each other.
struct JobHandles {
  FileDescriptor memory;                  // the job's memfd
  std::vector<FileDescriptor> processes;  // a pidfd for each rank
};

// More handles than this do not fit into one message.
inline constexpr int max_ranks_on_node = 250;

// Rank 0: `memory` is the job's file; pids[r] is set for every rank before any other rank can see
// it.
JobHandles host_rendezvous(const World& world, std::chrono::milliseconds timeout,
                           FileDescriptor memory,
                           const std::function<void(int rank, int pid)>& set_pid);
// The other ranks.
JobHandles join_rendezvous(const World& world, std::chrono::milliseconds timeout);

}  // namespace tessera::comm
