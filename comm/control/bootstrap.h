// How the ranks of a job that may span nodes find rank 0.
#pragma once

#include <chrono>
#include <memory>

#include "comm/control/hub.h"
#include "comm/control/job_key.h"
#include "comm/control/rank_control.h"
#include "comm/world.h"

namespace tessera::comm::control {

// A launcher may listen for rank 0 itself, at a port that it leaves to no other program. It tells
// all ranks the port, which then stands for MASTER_PORT, and rank 0 the number of the descriptor
// that it inherits. MASTER_PORT is free for a program that listens there itself, as PyTorch's does.
inline constexpr const char* port_variable = "TESSERA_CONTROL_PORT";
inline constexpr const char* listener_variable = "TESSERA_CONTROL_LISTENER";

// A rank's control plane; rank 0 has the hub as well. Members are destroyed in reverse order: the
// hub last, after this rank's own connection has left.
struct ControlPlane {
  std::unique_ptr<Hub> hub;
  std::shared_ptr<RankControl> control;
};

// The environment variable TESSERA_BOOTSTRAP selects how rank 0's address reaches the others:
//   tcp (default)  rank 0 listens on TESSERA_CONTROL_PORT, else MASTER_PORT, of MASTER_ADDR: with
//                  the launcher's listener or its own. It takes the first free port of the next 15
//                  only if a process that started it listens there itself, as torchrun's agent
//                  does; the other ranks then find a program there that is not the hub, and go on;
//   file:PATH      rank 0 writes address and port into PATH, which all nodes see;
//   mpi            MPI broadcasts them, in programs that mpirun started; the default of those on
//                  several nodes without MASTER_ADDR.
// Throws Error(rank_failed) naming the ranks that did not come; Error(configuration) for a wrong
// setting, a port that another program has, a duplicate rank, worlds that differ, or a world over
// several nodes that has no key (job_key.h) and has not declined one.
ControlPlane connect_control_plane(const World& world, const Patience& patience, const JobKey& key);
// With the key of the environment.
ControlPlane connect_control_plane(const World& world, const Patience& patience);

// True when these ranks find rank 0 through MPI.
bool meets_by_mpi(const World& world);

}  // namespace tessera::comm::control
