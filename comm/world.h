// The ranks of a job, and how they find each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace tessera::comm {

// The values of torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
// MASTER_ADDR, MASTER_PORT).
struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  // The launcher's number of the node; when the launcher sets none (mpirun), the number as if ranks
  // were assigned node by node.
  int node_rank = 0;
  bool node_is_known = true;  // the launcher set node_rank
  int nodes = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  std::string run_id{};  // TORCHELASTIC_RUN_ID or what tessera launch sets; separates two jobs on
                         // one node
};

// Reads the environment; one rank when neither RANK nor WORLD_SIZE is set. A missing partner, or a
// value that is not a number or out of range, is an Error(configuration) that names the variable
// and the way out. Also reads Open MPI's and Slurm's variables (OMPI_COMM_WORLD_RANK/SIZE,
// SLURM_PROCID/SLURM_NTASKS) and MPICH's (PMI_RANK/SIZE) when RANK is absent; under Slurm, without
// MASTER_ADDR, rank 0's node is the first one of the step.
World world_from_environment();

// The network between ranks on CPUs of several nodes (docs/several-hosts.md).
enum class HostsBackend : std::uint8_t {
  automatic,  // the value of TESSERA_BACKEND (auto, shm+tcp or shm+mpi), else tcp
  tcp,        // backend `shm+tcp`
  mpi,        // backend `shm+mpi`, in programs that mpirun or srun started
};

struct ConnectOptions {
  std::chrono::milliseconds rendezvous_timeout{60'000};
  // How long a collective may wait for a peer. Default: TESSERA_COMM_TIMEOUT in seconds, else 300.
  std::chrono::milliseconds collective_timeout{0};
  // The time after which an error names a rank that others wait for and that does not move
  // (stopped, in a deadlock; docs/sharding.md has the rule); the same for ranks that all wait for
  // one another. Default: TESSERA_STANDSTILL_TIMEOUT in seconds, else 5.
  std::chrono::milliseconds standstill_timeout{0};
  // The device of the buffers. For a GPU, connect() uses NCCL; run_local() lets its ranks share the
  // GPU.
  Device device = Device::cpu();
  // NCCL only: sum in the order of the other backends (all-to-all and our own kernel), so that
  // strategies give equal bits; otherwise in NCCL's order, with its own collectives.
  bool fixed_order = false;
  HostsBackend hosts_backend = HostsBackend::automatic;
};

// Connects the processes of a world: on the CPU those of one node (backend `shm`; `local` for a
// world of one rank, on a GPU too) or of several (`shm+tcp` or `shm+mpi`), on GPUs through
// connect_nccl() (nccl.h). Throws Error(rank_failed) naming the ranks that did not come,
// Error(configuration) for a duplicate rank or ranks that disagree on the world.
// It may set NCCL_SOCKET_IFNAME, or OMPI_MCA_pml and OMPI_MCA_btl: no other thread of the process
// may read the environment meanwhile.
std::shared_ptr<Communicator> connect(const World& world, const ConnectOptions& options = {});

// Runs fn(communicator) on `ranks` threads of this process (backend `local`) and joins them. When a
// rank throws, the others are aborted and the first exception is rethrown. Each thread has
// options.device as its default device; ranks on a GPU share it, each with its own queue. Before a
// rank ends, it waits for the work in its queue.
void run_local(int ranks, const std::function<void(const std::shared_ptr<Communicator>&)>& fn,
               const ConnectOptions& options = {});

}  // namespace tessera::comm
