// Ranks that are processes of one node, over shared memory (backend `shm`).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "comm/shared/job.h"
#include "comm/world.h"

namespace tessera::comm {

// As connect() (world.h); every rank of the world is on this node.
std::shared_ptr<Communicator> connect_shared(const World& world, const ConnectOptions& options);

// The same, as a part of a larger world: `timeout` is a collective's, and `around` describes that
// world. No rank's heartbeat is watched.
struct JoinedJob {
  std::shared_ptr<Job> job;
  std::uint64_t world_group = 0;  // for make_world()
};
JoinedJob join_shared_job(const World& node, const ConnectOptions& options,
                          std::chrono::milliseconds timeout, Surroundings around);

}  // namespace tessera::comm
