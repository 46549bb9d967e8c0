// The communicator of a plan: one rank alone with imagined peers. Collectives return at once; their
// buffers are counted but have no memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/record/recorder.h"

namespace tessera::comm {

class Topology;

// The ranks of the plan.
struct RecordedWorld {
  int rank = 0;
  int size = 1;
  int stride = 1;  // between the numbers that its ranks have in the world
  Device device = Device::planned();
  // True when ranks see one memory (`shm`, `local`): gathered parameters exist once for all of
  // them. Otherwise each rank has its own memory (`nccl`).
  bool one_memory = true;
  // Ranks per node when the ranks are on several nodes, equally many on each, node after node
  // (`shm+tcp`): one memory for each node. 0: one node.
  int ranks_per_host = 0;
  bool fixed_order = false;  // as in ConnectOptions, for `nccl`
};

// Counts small messages, and notes all calls in the recorder. Exchanges return this rank's message
// for every rank.
class RecordGroup final : public ControlGroup {
 public:
  RecordGroup(const RecordedWorld& world, std::shared_ptr<Recorder> recorder)
      : world_(world), recorder_(std::move(recorder)) {}

  [[nodiscard]] int rank() const override { return world_.rank; }
  [[nodiscard]] int size() const override { return world_.size; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  using ControlGroup::exchange;
  std::vector<std::string> exchange(const Call& call, std::string_view message) override;
  void abort(std::string_view /*reason*/) noexcept override {}
  void note(Activity /*activity*/) noexcept override {}

  // `received` bytes reach this rank; `bytes` as in RecordedCollective, where the call is one.
  void count(Op op, Tag tag, std::uint64_t received);
  void log_call(Op op, Tag tag, double bytes, Reduction reduction = {});
  // A send or its receive.
  void log_message(int peer, Tag tag, double bytes);

 private:
  RecordedWorld world_;
  std::shared_ptr<Recorder> recorder_;
  std::string name_ = "record";
};

class RecordCommunicator final : public Communicator {
 public:
  RecordCommunicator(const RecordedWorld& world, std::shared_ptr<Recorder> recorder)
      : world_(world), recorder_(std::move(recorder)), group_(world, recorder_) {}

  [[nodiscard]] ControlGroup& control() const override { return group_; }
  [[nodiscard]] std::string_view backend() const override { return group_.name(); }
  [[nodiscard]] Device device() const override { return world_.device; }
  [[nodiscard]] bool one_memory() const override { return world_.one_memory; }
  [[nodiscard]] int ranks_per_host() const override { return over_nodes() ? ranks_here() : 0; }
  [[nodiscard]] bool fixed_order() const override {
    return world_.one_memory || world_.fixed_order;
  }

  std::shared_ptr<Buffer> allocate(std::string_view name, std::size_t bytes,
                                   Sharing sharing) override;
  void acquire(Buffer& buffer, Tag tag) override;
  void reserve_scratch(std::size_t bytes) override;
  // A logic_error with more than one rank: this rank does not know the choices of the others.
  std::shared_ptr<Communicator> split(int color, int key, std::string_view name) override;
  std::shared_ptr<Communicator> duplicate(std::string_view name) override;
  [[nodiscard]] std::size_t held_bytes() const override {
    return recorder_->held_memory()->bytes();
  }

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
  std::shared_ptr<Communicator> do_split_evenly(int color, Part part,
                                                std::string_view name) override;

  // The ranks are on several nodes; ranks_here() of them on this rank's node.
  [[nodiscard]] bool over_nodes() const;
  [[nodiscard]] int ranks_here() const;
  [[nodiscard]] Topology topology() const;
  void hold_scratch_of_nodes(const Reduction& reduction);
  void hold_scratch(std::size_t bytes, int sharers);

  RecordedWorld world_;
  std::shared_ptr<Recorder> recorder_;
  mutable RecordGroup group_;
  HeldBlock scratch_;
  HeldBlock sums_;  // of all_reduce over nodes
  bool has_sums_ = false;
  std::size_t scratch_bytes_ = 0;
};

std::shared_ptr<Communicator> connect_record(const RecordedWorld& world,
                                             std::shared_ptr<Recorder> recorder);

}  // namespace tessera::comm
