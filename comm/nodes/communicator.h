// The communicator of ranks on several nodes. Inside a node: shared memory, where a gathered buffer
// exists once. Between nodes: messages of a Transport, which each rank exchanges with one
// counterpart on each other node. The control plane carries small messages and finds ranks that
// differ or fail.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/control/rank_control.h"
#include "comm/nodes/job.h"
#include "comm/nodes/topology.h"
#include "comm/nodes/transport.h"
#include "comm/shared/communicator.h"

namespace tessera::comm {

// Gives up in the node's memory, which its ranks look at, and which passes it on to the hub.
class NodesGroup final : public control::HubGroup {
 public:
  NodesGroup(control::HubGroup group, std::shared_ptr<SharedCommunicator> local)
      : HubGroup(std::move(group)), local_(std::move(local)) {}
  void abort(std::string_view reason) noexcept override { local_->abort(reason); }

 private:
  std::shared_ptr<SharedCommunicator> local_;
};

class NodesCommunicator final : public Communicator {
 public:
  // Collective. `world_ranks` are the world's numbers of the ranks of `group`; `local` connects
  // those on this node, in the same order.
  NodesCommunicator(std::shared_ptr<NodesJob> job, control::HubGroup group,
                    std::vector<int> world_ranks, std::shared_ptr<SharedCommunicator> local);
  ~NodesCommunicator() override;
  NodesCommunicator(const NodesCommunicator&) = delete;
  NodesCommunicator& operator=(const NodesCommunicator&) = delete;

  [[nodiscard]] ControlGroup& control() const override { return group_; }
  [[nodiscard]] std::string_view backend() const override { return job_->backend(); }
  [[nodiscard]] Device device() const override { return Device::cpu(); }
  [[nodiscard]] int ranks_per_host() const override { return local_->size(); }

  std::shared_ptr<Buffer> allocate(std::string_view name, std::size_t bytes,
                                   Sharing sharing) override;
  void acquire(Buffer& buffer, Tag tag) override;
  void reserve_scratch(std::size_t bytes) override;
  // Ranks of one node get a communicator of that node alone.
  std::shared_ptr<Communicator> split(int color, int key, std::string_view name) override;
  std::shared_ptr<Communicator> duplicate(std::string_view name) override;
  [[nodiscard]] std::size_t held_bytes() const override { return local_->held_bytes(); }
  [[nodiscard]] std::uint64_t bytes_between_hosts() const override { return job_->bytes_sent(); }

 private:
  void do_all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges, Tag tag) override;
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
  };
  // Precedes the data of a collective. The control plane reports how calls differ; the header
  // prevents one call's data from being taken for another's until then.
  struct Header {
    std::uint64_t call = 0;  // its number and what it is
    std::uint64_t ranges = 0;
  };
  struct Peer {
    int rank = 0;
    Header header{};
    Transport::Ticket arrives = 0;
    bool is_compared = true;
    std::vector<Range> ranges{};  // that it needs summed
  };
  class EncodedShares;  // the part of a gather that is sent in fewer bits
  class Reducing;       // sums over ranges that the ranks divide among themselves
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };

  SharedBuffer& own(Buffer& buffer, Op op) const;
  // Announces the call to the control plane and runs the collective.
  void collective(const Call& call, const std::function<void()>& body);
  // Runs `body`. An error in it is often the consequence of a failure that the control plane knows;
  // then run() throws that failure.
  void run(const Call& call, const std::function<void()>& body);
  // Moves messages until done() holds; done() may work, and then sets `busy`.
  void move_until(const Call& call, const std::function<bool(bool& busy)>& done);
  void wait_for(Transport& transport, const Call& call,
                const std::function<bool(bool& busy)>& done);
  [[noreturn]] void fail_late(const Transport& transport, const Call& call) const;
  void meet(const Call& call) { local_->group().meet_with_queues(call); }
  Transport::Ticket send_data(int peer, const std::byte* from, std::size_t bytes);
  static Header header_of(const Call& call, std::uint64_t number);
  void exchange_headers(const Call& call, std::uint64_t ranges);
  void compare_headers(const Call& call);
  void gather(std::byte* memory, const std::vector<GatheredRange>& ranges, const Call& call);
  // Tells the peers the ranges that this rank needs summed, and receives theirs.
  void exchange_ranges(const std::vector<ReducedRange>& mine, const Call& call);
  [[nodiscard]] const std::vector<Range>& ranges_of(int client) const;
  void all_reduce_in_pieces(SharedBuffer& buffer, std::int64_t count, void* out,
                            const Reduction& reduction, Call call);
  std::byte* scratch(std::size_t bytes);
  // The transport of messages to one rank of another node; both ranks make it at their first
  // message.
  Transport& line_to(int peer, const Call& call);

  std::shared_ptr<NodesJob> job_;
  mutable NodesGroup group_;
  std::vector<int> world_ranks_;
  std::shared_ptr<SharedCommunicator> local_;
  Topology topology_;
  std::unique_ptr<Transport> transport_;
  std::uint64_t channel_ = 0;
  std::map<int, std::unique_ptr<Transport>> lines_;
  Header own_header_;
  std::vector<Range> own_ranges_;
  std::vector<Peer> peers_;
  std::uint64_t collectives_ = 0;
  std::uint64_t buffers_ = 0;
  std::shared_ptr<SharedBuffer> sums_;  // of all_reduce
  std::vector<CacheLine> scratch_;
  HeldBlock held_scratch_;
};

}  // namespace tessera::comm
