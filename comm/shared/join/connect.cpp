// Connects ranks that are processes of one node to their job's memory.
#include "comm/shared/join/connect.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/error.h"
#include "base/home_process.h"
#include "comm/shared/communicator.h"
#include "comm/shared/join/rendezvous.h"
#include "comm/shared/join/single_process.h"
#include "comm/timeout.h"

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
  TESSERA_CHECK(world.size <= max_ranks_on_node, ErrorCode::configuration,
                "{} ranks on one host: shared memory takes at most {}", world.size,
                max_ranks_on_node);
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

// The job of this rank's node; with a heartbeat unless the ranks are watched from outside.
JoinedJob join(const World& world, const ConnectOptions& options, std::chrono::milliseconds timeout,
               bool with_pulse, Surroundings around) {
  check_world(world);
  JobHandles handles = world.rank == 0 ? make_job(world, options.rendezvous_timeout)
                                       : join_rendezvous(world, options.rendezvous_timeout);
  const std::shared_ptr<std::byte> memory = map_block(handles.memory.get(), world.size);
  auto* block = reinterpret_cast<JobBlock*>(memory.get());
  std::shared_ptr<Arena> arena = make_file_arena(handles.memory.release(), block->next_free);
  const std::chrono::milliseconds standstill = standstill_timeout(options);
  Job::Parts parts{.rank = world.rank,
                   .backend = "shm",
                   .block = block,
                   .block_owner = memory,
                   .arena = std::move(arena),
                   .watch = std::make_unique<ProcessWatch>(std::move(handles.processes)),
                   .timeout = timeout,
                   .standstill_timeout = standstill,
                   .pulse = with_pulse ? block->start_pulse(standstill) : nullptr,
                   .around = std::move(around)};
  return {make_shared_at_home<Job>(std::move(parts)), block->world_group};
}

}  // namespace

JoinedJob join_shared_job(const World& node, const ConnectOptions& options,
                          std::chrono::milliseconds timeout, Surroundings around) {
  return join(node, options, timeout, false, std::move(around));
}

std::shared_ptr<Communicator> connect_shared(const World& world, const ConnectOptions& options) {
  const JoinedJob joined = join(world, options, collective_timeout(options), true, {});
  return make_world(joined.job, joined.world_group);
}

}  // namespace tessera::comm
