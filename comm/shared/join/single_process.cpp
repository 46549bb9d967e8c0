// Jobs over anonymous memory.
#include "comm/shared/join/single_process.h"

#include <unistd.h>

#include <numeric>

#include "base/home_process.h"
#include "comm/shared/communicator.h"
#include "comm/shared/device_parts.h"
#include "comm/timeout.h"
#include "engine/device/backend.h"

namespace tessera::comm {

SingleProcess::SingleProcess(int ranks, const ConnectOptions& options)
    : arena_(make_anonymous_arena()),
      timeout_(collective_timeout(options)),
      standstill_timeout_(standstill_timeout(options)) {
  require_device(options.device);
  if (options.device.type != DeviceType::cpu) {
    device_parts_ = std::make_shared<DeviceParts>(options.device);
  }
  const std::size_t bytes = JobBlock::bytes_for(ranks);
  const std::uint64_t where = arena_->reserve(bytes);
  memory_ = std::shared_ptr<std::byte>(
      arena_->map(where, bytes),
      [arena = arena_, where, bytes](std::byte*) { arena->discard(where, bytes); });
  arena_->commit(where, 0, bytes);
  block_ = JobBlock::create(memory_.get(), ranks);
  for (int rank = 0; rank < ranks; ++rank) block_->rank(rank).pid = getpid();
  block_->world_group = Group::reserve_block(*arena_, ranks);
  pulse_ = block_->start_pulse(standstill_timeout_);
}

std::shared_ptr<Job> SingleProcess::job_of(int rank) const {
  return make_shared_at_home<Job>(Job::Parts{.rank = rank,
                                             .backend = "local",
                                             .block = block_,
                                             .block_owner = memory_,
                                             .arena = arena_,
                                             .watch = nullptr,
                                             .timeout = timeout_,
                                             .standstill_timeout = standstill_timeout_,
                                             .device_parts = device_parts_,
                                             .pulse = pulse_});
}

std::shared_ptr<Communicator> SingleProcess::world_of(const std::shared_ptr<Job>& job) const {
  return make_world(job, block_->world_group);
}

std::shared_ptr<Communicator> make_world(const std::shared_ptr<Job>& job,
                                         std::uint64_t world_group) {
  std::vector<int> members(static_cast<std::size_t>(job->size()));
  std::iota(members.begin(), members.end(), 0);
  job->standstill().set_own_thread();
  return make_shared_at_home<SharedCommunicator>(
      std::make_shared<Group>(job, world_group, std::move(members), "world"));
}

}  // namespace tessera::comm
