// The communicator of ranks with a GPU each: NCCL for data, the control plane for small messages.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/nccl/buffer.h"
#include "comm/nccl/channel.h"
#include "comm/nccl/job.h"

namespace tessera::comm {

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclJob> job, control::HubGroup group,
                   std::shared_ptr<NcclChannel> channel, bool fixed_order);

  [[nodiscard]] ControlGroup& control() const override { return group_; }
  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  [[nodiscard]] Device device() const override { return job_->device(); }
  [[nodiscard]] bool one_memory() const override { return false; }
  [[nodiscard]] bool fixed_order() const override { return fixed_order_; }

  std::shared_ptr<Buffer> allocate(std::string_view name, std::size_t bytes,
                                   Sharing sharing) override;
  void acquire(Buffer& buffer, Tag tag) override;
  void reserve_scratch(std::size_t bytes) override;
  std::shared_ptr<Communicator> split(int color, int key, std::string_view name) override;
  std::shared_ptr<Communicator> duplicate(std::string_view name) override;
  [[nodiscard]] std::size_t held_bytes() const override { return job_->held_memory()->bytes(); }

 private:
  void do_all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges, Tag tag) override;
  // A unit (tag.unit) and buffer must have the same ranges in every call.
  void do_reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges,
                         const Reduction& reduction, Tag tag) override;
  void do_all_reduce(Buffer& buffer, std::int64_t count, void* out, const Reduction& reduction,
                     Tag tag) override;
  void do_all_to_all(Buffer& buffer, std::size_t bytes, void* out, Tag tag) override;
  void do_send(const void* memory, std::size_t bytes, int to, Tag tag) override;
  void do_receive(void* memory, std::size_t bytes, int from, Tag tag) override;
  void do_broadcast(void* memory, std::size_t bytes, int root, Tag tag) override;

  struct Range {
    std::int64_t first;
    std::int64_t count;
    friend bool operator==(const Range&, const Range&) = default;
    friend bool operator<(const Range& a, const Range& b) {
      return std::pair(a.first, a.count) < std::pair(b.first, b.count);
    }
  };
  using Ranges = std::vector<Range>;
  using RangesOfRanks = std::vector<Ranges>;

  NcclBuffer& own(Buffer& buffer, Op op) const;
  [[nodiscard]] Call call_of(Op op, const NcclBuffer& buffer, Tag tag) const;
  // Runs the body, which puts a collective into the queue. When NCCL fails, the control plane often
  // knows the cause: the calls differ, or a rank is gone. Then this throws that cause.
  template <class Body>
  void collective(const Call& call, const Body& body) {
    group_.announce(call);
    try {
      body();
    } catch (const Error& error) {
      job_->control().check_soon(call, std::chrono::seconds(2));
      job_->control().abort(error.what());
      throw;
    }
    job_->expect(call, current_queue(device()).record());
  }
  const RangesOfRanks& ranges_of_ranks(const Ranges& mine, const Call& call);
  static bool is_regular(const RangesOfRanks& all);
  std::byte* scratch(std::size_t bytes);
  // Elements that this rank sends to another or receives from it.
  struct Move {
    int peer;
    const std::byte* send;  // or null
    std::byte* receive;     // or null
    std::int64_t count;
  };
  // Moves in the format `wire`; a format other than `same` needs move_scratch() bytes.
  static std::size_t move_scratch(const std::vector<Move>& moves, WireFormat wire);
  void move(const std::vector<Move>& moves, DType dtype, WireFormat wire, std::byte* encoded);
  void gather_as_wire(const NcclBuffer& buffer, const std::vector<GatheredRange>& ranges);
  void agree_on_memory(const Call& call, const std::function<void()>& take);

  void reduce_in_order_of_nccl(const NcclBuffer& buffer, const std::vector<ReducedRange>& ranges,
                               const RangesOfRanks& all, const Reduction& reduction);
  void reduce_in_fixed_order(const NcclBuffer& buffer, const std::vector<ReducedRange>& ranges,
                             const RangesOfRanks& all, const Reduction& reduction);
  void all_reduce_in_fixed_order(const NcclBuffer& buffer, std::int64_t count, void* out,
                                 const Reduction& reduction);
  // out (+)= scale * the sum over `sources` in the tree of kernels::ReduceRanks.
  void sum(const std::vector<const void*>& sources, int group, void* out, std::int64_t count,
           DType in_dtype, const Reduction& reduction);

  std::shared_ptr<NcclJob> job_;
  mutable control::HubGroup group_;
  std::shared_ptr<NcclChannel> channel_;
  bool fixed_order_;
  std::uint64_t buffers_ = 0;
  std::map<std::pair<std::uint64_t, Ranges>, RangesOfRanks>
      known_ranges_;  // by unit and own ranges
  NcclMemory scratch_;
};

}  // namespace tessera::comm
