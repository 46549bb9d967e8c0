// The parts that the communicators of one rank share: the list of ranks, which of them live, and
// the first failure.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/home_process.h"
#include "comm/held_memory.h"
#include "comm/history.h"
#include "comm/shared/arena.h"
#include "comm/watch/pulse.h"
#include "comm/watch/standstill.h"
#include "engine/device/device.h"

namespace tessera::comm {

class DeviceParts;

// The first failure of the job. All ranks report this one, because later failures would hide the
// cause.
struct FailureRecord {
  enum State : std::uint32_t { none, being_written, written };
  std::atomic<std::uint32_t> state{none};
  std::int32_t recorded_by = -1;
  char text[16376]{};
};

struct alignas(64) JobRank {
  std::atomic<std::uint32_t> left{0};  // it has ended normally
  std::int32_t pid = 0;
  StandingRank standing;
  RankPulse pulse;
  History history;
};

// The job's memory that all ranks see, followed by a JobRank for each.
struct alignas(64) JobBlock {
  std::atomic<std::uint64_t> next_free{0};  // of the file, where there is one
  std::int32_t size = 0;
  std::uint64_t world_group = 0;  // where the world's GroupBlock is
  FailureRecord failure;

  [[nodiscard]] JobRank& rank(int index) { return reinterpret_cast<JobRank*>(this + 1)[index]; }
  [[nodiscard]] static std::size_t bytes_for(int size) {
    return round_up(sizeof(JobBlock) + sizeof(JobRank) * static_cast<std::size_t>(size),
                    page_bytes);
  }
  // Builds the block of a job of `size` ranks in zeroed memory.
  static JobBlock* create(std::byte* memory, int size);
  // Starts the heartbeat of this process's ranks; null for a job of one rank.
  [[nodiscard]] std::shared_ptr<Pulse> start_pulse(std::chrono::milliseconds limit);
};

// How a rank notices that another one is dead. Ranks that are threads cannot die alone.
class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  // Ranks whose process has ended, in order. Callable from several threads.
  [[nodiscard]] virtual std::vector<int> ended() const = 0;
};

// The world around a job that covers only one node; all fields are empty when the job is the whole
// world.
struct Surroundings {
  std::vector<int> world_ranks{};                        // the numbers of the job's ranks there
  std::shared_ptr<StandstillWatch> watch{};              // over this rank, instead of the job's own
  std::function<void(const Call&)> look{};               // throws when the world has failed
  std::function<void(std::string_view)> tell_failure{};  // of this job, to the other nodes
};

// One rank's view of the job.
class Job {
 public:
  struct Parts {
    int rank = 0;
    std::string backend;
    JobBlock* block = nullptr;
    std::shared_ptr<void> block_owner;  // keeps `block` mapped
    std::shared_ptr<Arena> arena;
    std::unique_ptr<PeerWatch> watch;  // none: ranks are threads
    std::chrono::milliseconds timeout{0};
    std::chrono::milliseconds standstill_timeout{0};
    std::shared_ptr<DeviceParts> device_parts{};  // of ranks that share a GPU; none: on the CPU
    std::shared_ptr<Pulse> pulse{};               // of this process; none: it is the only rank
    Surroundings around{};
  };

  explicit Job(Parts parts);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] int rank() const { return parts_.rank; }
  [[nodiscard]] int size() const { return parts_.block->size; }
  // A fork()ed copy of a rank must neither wait for the others nor write for the rank.
  [[nodiscard]] const HomeProcess& home() const { return home_; }
  [[nodiscard]] std::string_view backend() const { return parts_.backend; }
  [[nodiscard]] const std::shared_ptr<Arena>& arena() const { return parts_.arena; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return parts_.timeout; }
  // Null on the CPU.
  [[nodiscard]] const std::shared_ptr<DeviceParts>& device_parts() const {
    return parts_.device_parts;
  }
  [[nodiscard]] Device device() const;
  [[nodiscard]] const std::shared_ptr<HeldMemory>& held_memory() const { return held_memory_; }
  // True when every rank can have a core.
  [[nodiscard]] bool may_spin() const { return may_spin_; }

  // The rank's number in the world, which the user knows.
  [[nodiscard]] int number_of_rank(int rank) const {
    const std::vector<int>& numbers = parts_.around.world_ranks;
    return numbers.empty() ? rank : numbers[static_cast<std::size_t>(rank)];
  }
  // "rank 2 (pid 4711)".
  [[nodiscard]] std::string name_of_rank(int rank) const;

  // This rank ends normally; peers that still wait for it report that it left, not that it died.
  void leave() { parts_.block->rank(parts_.rank).left.store(1); }
  [[nodiscard]] bool has_left(int rank) const { return parts_.block->rank(rank).left.load() != 0; }

  // Ranks whose process ended without leaving.
  [[nodiscard]] std::vector<int> dead_ranks() const;

  [[nodiscard]] StandstillWatch& standstill() { return *standstill_; }
  // Called regularly by a thread that waits in `call`. In a deadlock of all ranks, returns the call
  // that each rank waits in.
  [[nodiscard]] std::optional<std::string> look_for_standstill(std::string_view call);
  // The same for one rank that this one has waited for, for `waited`. Returns the reason when that
  // rank's process was stopped or the rank does not move.
  [[nodiscard]] std::optional<std::string> look_for_stop(int rank,
                                                         std::chrono::nanoseconds waited) const;
  // This rank enters a round of a channel.
  void note(const HistoryEntry& entry) { parts_.block->rank(parts_.rank).history.add(entry); }
  [[nodiscard]] std::string describe_histories() const;

  // Throws when the surrounding world has failed, a failure that `call`'s ranks do not know.
  void look_around(const Call& call) const {
    if (parts_.around.look) parts_.around.look(call);
  }
  [[nodiscard]] bool failed() const {
    return parts_.block->failure.state.load(std::memory_order_acquire) != FailureRecord::none;
  }
  // Keeps `text` as the job's failure unless there is one already.
  void record_failure(std::string_view text) noexcept;
  // Reports the failure to the surrounding world.
  void tell_failure(std::string_view text) const noexcept;
  // Records the failure that this rank gives up.
  void abort(std::string_view reason) noexcept;
  [[nodiscard]] std::string failure_text() const;

 private:
  [[nodiscard]] std::string describe_standstill() const;
  [[nodiscard]] std::string describe_last_call(int rank) const;

  Parts parts_;
  HomeProcess home_;
  bool may_spin_;
  std::shared_ptr<HeldMemory> held_memory_ = std::make_shared<HeldMemory>();
  std::shared_ptr<StandstillWatch> standstill_;
};

// Throws Error(rank_failed) with the job's first failure; `where` describes what this rank was
// doing.
[[noreturn]] void throw_failure(const Job& job, std::string_view where);

}  // namespace tessera::comm
