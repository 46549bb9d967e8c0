// A job whose ranks all live in this process: threads, or a world of one.
#pragma once

#include <chrono>
#include <memory>

#include "comm/communicator.h"
#include "comm/shared/job.h"
#include "comm/world.h"

namespace tessera::comm {

class SingleProcess {
 public:
  // Ranks share options.device when it is a GPU.
  SingleProcess(int ranks, const ConnectOptions& options);

  // Each rank takes its job once and then, on its own thread, its communicator of all ranks.
  [[nodiscard]] std::shared_ptr<Job> job_of(int rank) const;
  [[nodiscard]] std::shared_ptr<Communicator> world_of(const std::shared_ptr<Job>& job) const;

 private:
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<std::byte> memory_;
  JobBlock* block_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds standstill_timeout_;
  std::shared_ptr<DeviceParts> device_parts_;
  std::shared_ptr<Pulse> pulse_;
};

// The communicator of all ranks of a job; `world_group` is the group's place, which the job's block
// stores. Called on the rank's own thread.
std::shared_ptr<Communicator> make_world(const std::shared_ptr<Job>& job,
                                         std::uint64_t world_group);

}  // namespace tessera::comm
