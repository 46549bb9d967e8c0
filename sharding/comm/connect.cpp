// Ranks that are processes of one host.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <cerrno>

#include "engine/backend.h"
#include "kernels/base/error.h"
#include "sharding/comm/nccl.h"
#include "sharding/comm/record/communicator.h"
#include "sharding/comm/rendezvous.h"
#include "sharding/comm/shared_communicator.h"
#include "sharding/comm/single_process.h"
#include "sharding/comm/timeout.h"
#include "sharding/comm/world.h"

namespace tessera::comm {
namespace {

class ProcessWatch final : public PeerWatch {
 public:
  explicit ProcessWatch(std::vector<FileDescriptor> processes) : processes_(std::move(processes)) {}

  [[nodiscard]] std::vector<int> ended() const override {
    std::vector<pollfd> watched;
    for (const FileDescriptor& process : processes_) {
      watched.push_back({.fd = process.get(), .events = POLLIN, .revents = 0});
    }
    std::vector<int> ranks;
    if (poll(watched.data(), watched.size(), 0) <= 0) return ranks;
    for (std::size_t rank = 0; rank < watched.size(); ++rank) {
      if (watched[rank].revents != 0) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

 private:
  std::vector<FileDescriptor> processes_;
};

// The job's block, mapped from the beginning of its file.
std::shared_ptr<std::byte> map_block(int descriptor, int size) {
  const std::size_t bytes = JobBlock::bytes_for(size);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  TESSERA_CHECK(memory != MAP_FAILED, ErrorCode::out_of_memory, "cannot map the job's memory: {}",
                describe_errno("mmap", errno));
  return {static_cast<std::byte*>(memory), [bytes](std::byte* mapped) { munmap(mapped, bytes); }};
}

void check_world(const World& world) {
  TESSERA_CHECK(world.size >= 1 && world.rank >= 0 && world.rank < world.size,
                ErrorCode::configuration,
                "RANK={} is no rank of a world of {}: ranks go from 0 to WORLD_SIZE - 1",
                world.rank, world.size);
  TESSERA_CHECK(world.local_size == world.size, ErrorCode::configuration,
                "the world has {} ranks and {} of them are on this host: shared memory reaches one "
                "host; start all "
                "ranks here, or choose a backend that spans hosts",
                world.size, world.local_size);
  TESSERA_CHECK(world.size <= max_ranks_on_host, ErrorCode::configuration,
                "{} ranks on one host: shared memory takes at most {}", world.size,
                max_ranks_on_host);
}

// Rank 0 makes the memory, with the world's group in it, and hands it out.
JobHandles make_job(const World& world, std::chrono::milliseconds timeout) {
  FileDescriptor memory(TESSERA_SYSTEM(memfd_create("tessera", MFD_CLOEXEC)));
  const std::size_t bytes = JobBlock::bytes_for(world.size);
  commit_file_range(memory.get(), 0, bytes);
  const std::shared_ptr<std::byte> mapped = map_block(memory.get(), world.size);
  JobBlock* block = JobBlock::create(mapped.get(), world.size);
  block->next_free.store(bytes);
  {
    const int copy = TESSERA_SYSTEM(fcntl(memory.get(), F_DUPFD_CLOEXEC, 0));
    block->world_group = Group::reserve_block(*make_file_arena(copy, block->next_free), world.size);
  }
  return host_rendezvous(world, timeout, std::move(memory),
                         [block](int rank, int pid) { block->rank(rank).pid = pid; });
}

}  // namespace

std::shared_ptr<Communicator> connect(const World& world, const ConnectOptions& options) {
  require_device(options.device);
  if (options.device.is_planned()) {
    const bool on_gpus = options.device == Device::planned(DeviceType::cuda);
    return connect_record({.rank = world.rank,
                           .size = world.size,
                           .device = options.device,
                           .one_memory = !on_gpus || world.size == 1,
                           .fixed_order = options.fixed_order},
                          std::make_shared<Recorder>());
  }
  if (options.device.type != DeviceType::cpu && world.size > 1) return connect_nccl(world, options);
  check_world(world);
  if (world.size == 1) {
    const SingleProcess process(1, options);
    return process.world_of(process.job_of(0));
  }
  JobHandles handles = world.rank == 0 ? make_job(world, options.rendezvous_timeout)
                                       : join_rendezvous(world, options.rendezvous_timeout);
  const std::shared_ptr<std::byte> memory = map_block(handles.memory.get(), world.size);
  auto* block = reinterpret_cast<JobBlock*>(memory.get());
  std::shared_ptr<Arena> arena = make_file_arena(handles.memory.release(), block->next_free);
  const std::chrono::milliseconds standstill = standstill_timeout(options);
  const auto job = std::make_shared<Job>(
      Job::Parts{.rank = world.rank,
                 .backend = "shm",
                 .block = block,
                 .block_owner = memory,
                 .arena = std::move(arena),
                 .watch = std::make_unique<ProcessWatch>(std::move(handles.processes)),
                 .timeout = collective_timeout(options),
                 .standstill_timeout = standstill,
                 .pulse = block->start_pulse(standstill)});
  return make_world(job, block->world_group);
}

}  // namespace tessera::comm
