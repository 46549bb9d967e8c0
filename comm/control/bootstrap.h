// How the ranks of a job that may span hosts find rank 0.
#pragma once

#include <chrono>
#include <memory>

#include "comm/control/hub.h"
#include "comm/control/job_key.h"
#include "comm/control/rank_control.h"
#include "comm/world.h"

namespace tessera::comm::control {

// A rank's control plane; rank 0 has the hub as well. Members go in reverse order: the hub last,
// when this rank's own connection has left.
struct ControlPlane {
  std::unique_ptr<Hub> hub;
  std::shared_ptr<RankControl> control;
};

// The environment variable TESSERA_BOOTSTRAP says how rank 0's address travels:
//   tcp (default)  it listens on MASTER_PORT of MASTER_ADDR, or on the first free one of the next
//   15
//                  (torchrun's agent may have taken MASTER_PORT itself);
//   file:PATH      it writes address and port into PATH, which all hosts see;
//   mpi            MPI broadcasts them, in programs that mpirun started; the default of those on
//                  several hosts without MASTER_ADDR.
// Throws Error(rank_failed) naming the ranks that did not come, Error(configuration) for a wrong
// setting, a duplicate rank, worlds that differ, or a world over several hosts without a key
// (job_key.h) that does not say that it wants none.
ControlPlane connect_control_plane(const World& world, const Patience& patience, const JobKey& key);
// With the key of the environment.
ControlPlane connect_control_plane(const World& world, const Patience& patience);

// Whether it is MPI by which these ranks find rank 0.
bool meets_by_mpi(const World& world);

}  // namespace tessera::comm::control
