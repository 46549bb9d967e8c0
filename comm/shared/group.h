// The shared memory in which a communicator's ranks meet: which ranks have arrived, in which call,
// with which message.
//
// Calls are counted. Round n of the group is over for a rank when all ranks have arrived in it. A
// rank arrives in round n+2 only when all have arrived in round n+1, hence have read the posts of
// round n: two places for calls and messages, used alternately, are enough, and no round needs a
// second meeting.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/control_group.h"
#include "comm/shared/arena.h"
#include "comm/shared/device_parts.h"
#include "comm/shared/job.h"
#include "comm/shared/waiting.h"

namespace tessera::comm {

inline constexpr std::size_t mailbox_bytes = 8192;

// A rank's place in a group's shared memory.
struct alignas(64) GroupRank {
  enum State : std::uint32_t { present, closed, unwound };

  std::atomic<std::uint64_t> arrived{0};
  std::atomic<std::uint32_t> state{present};
  struct alignas(64) Post {
    Call call;
    std::uint64_t message_bytes = 0;  // of the whole message; the mailbox holds a part
  };
  std::array<Post, 2> posts;
};

// The last message of memory that a rank has sent to another one; it lies in a range of the arena.
struct alignas(64) GroupOutbox {
  std::atomic<std::uint64_t> posted{0};  // messages, this one included
  std::atomic<std::uint64_t> taken{0};
  std::atomic<std::int32_t> to{-1};
  std::uint64_t where = 0;
  Call call;
};

// A GroupRank, two mailboxes and a GroupOutbox for each rank follow it.
struct alignas(64) GroupBlock : SegmentHeader {
  WaitPoint wait_point;

  [[nodiscard]] static std::size_t bytes_for(int size);
  static GroupBlock* create(std::byte* memory, int size);
};

class Group final : public ControlGroup {
 public:
  // `members` are the job's ranks in this group's order; `block` is the memory at `where` that
  // GroupBlock::create prepared.
  Group(std::shared_ptr<Job> job, std::uint64_t where, std::vector<int> members, std::string name);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Makes a range for a group of `size` ranks, ready for each member's Group; one member calls it.
  static std::uint64_t reserve_block(Arena& arena, int size);

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(members_.size()); }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] const std::vector<int>& members() const { return members_; }
  [[nodiscard]] const std::shared_ptr<Job>& job() const { return job_; }

  // One round: posts the call, waits for all ranks, and checks that all are in the same call. After
  // it, and until this rank's next-but-one round, this rank can read the data that the others wrote
  // before they met.
  void meet(const Call& call, std::string_view message_part = {}, std::uint64_t message_bytes = 0);
  // A round of ranks and, on a GPU, of their current queues: work that any of the ranks has put
  // into its queue comes before the work that this thread puts into its own from now on.
  void meet_with_queues(const Call& call);
  // In as many rounds as the longest message needs. A barrier is a round of the queues as well.
  using ControlGroup::exchange;
  std::vector<std::string> exchange(const Call& call, std::string_view message) override;
  void abort(std::string_view reason) noexcept override;
  void note(Activity activity) noexcept override { job_->standstill().note(activity); }

  [[nodiscard]] GroupOutbox& outbox(int rank) const;

  // Waits until awaited(r) is false for every rank r of the group. `awaited` must read sequentially
  // consistent atomics.
  void wait(const Call& call, const std::function<bool(int)>& awaited);
  // Must be called after a store that may end a wait().
  void wake() { block().wait_point.wake(job_->arena()->between_processes()); }

  // Throws when the job has failed.
  void check(const Call& call) const;
  // This rank makes no further calls. Peers that wait for it get an error.
  void close() noexcept;

 private:
  struct Watch;  // the state of one wait() between its wakings

  [[nodiscard]] GroupBlock& block() const {
    return *reinterpret_cast<GroupBlock*>(segment_->memory());
  }
  [[nodiscard]] GroupRank& place(int rank) const;
  // The post of `rank` in the last round.
  [[nodiscard]] std::uint64_t message_bytes(int rank) const;
  [[nodiscard]] std::string_view mailbox(int rank) const;
  [[nodiscard]] char* mailbox_of(int rank, std::uint64_t round) const;
  void compare_calls(const Call& call) const;
  void look_after_peers(const Call& call, const std::function<bool(int)>& awaited, Watch& watch);
  [[noreturn]] void fail_with(const Call& call, std::string_view cause) const;
  [[nodiscard]] std::string names_of(const std::vector<int>& group_ranks) const;
  [[nodiscard]] std::string describe_here(const Call& call) const;

  std::shared_ptr<Job> job_;
  std::unique_ptr<Segment> segment_;
  std::shared_ptr<RoundPoints> points_;  // null on the CPU; destroyed before the segment
  std::uint64_t where_;
  std::vector<int> members_;
  std::string name_;
  int rank_ = -1;
  std::uint64_t round_ = 0;
};

}  // namespace tessera::comm
