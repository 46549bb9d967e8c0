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

class RecordCommunicator final : public Communicator {
 public:
  RecordCommunicator(const RecordedWorld& world, std::shared_ptr<Recorder> recorder)
      : world_(world), recorder_(std::move(recorder)) {}

  [[nodiscard]] int rank() const override { return world_.rank; }
  [[nodiscard]] int size() const override { return world_.size; }
  [[nodiscard]] std::string_view backend() const override { return "record"; }
  [[nodiscard]] Device device() const override { return world_.device; }
  [[nodiscard]] bool one_memory() const override { return world_.one_memory; }
  [[nodiscard]] int ranks_per_host() const override { return over_hosts() ? ranks_here() : 0; }
  [[nodiscard]] bool fixed_order() const override {
    return world_.one_memory || world_.fixed_order;
  }

  std::shared_ptr<Buffer> allocate(std::string_view name, std::size_t bytes,
                                   Sharing sharing) override;
  void acquire(Buffer& buffer, Tag tag) override;
  void all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges, Tag tag) override;
  void reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges, Reduction reduction,
                      Tag tag) override;
  void all_reduce(Buffer& buffer, std::int64_t count, void* out, Reduction reduction,
                  Tag tag) override;
  void reserve_scratch(std::size_t bytes) override;
  void send(const void* memory, std::size_t bytes, int to, Tag tag) override;
  void receive(void* memory, std::size_t bytes, int from, Tag tag) override;
  void broadcast(void* memory, std::size_t bytes, int root, Tag tag) override;
  // Returns this rank's message for every rank.
  std::vector<std::string> exchange(std::string_view message, Tag tag) override;
  std::string broadcast(std::string_view message, int root, Tag tag) override;
  void barrier(Tag tag) override;
  // A logic_error with more than one rank: this rank does not know the choices of the others.
  std::shared_ptr<Communicator> split(int color, int key, std::string_view name) override;
  std::shared_ptr<Communicator> split_blocks(int ranks, std::string_view name) override;
  std::shared_ptr<Communicator> split_across_blocks(int ranks, std::string_view name) override;
  std::shared_ptr<Communicator> duplicate(std::string_view name) override;
  [[nodiscard]] std::size_t held_bytes() const override {
    return recorder_->held_memory()->bytes();
  }
  void abort(std::string_view /*reason*/) noexcept override {}

 private:
  // The ranks are on several nodes; ranks_here() of them on this rank's node.
  [[nodiscard]] bool over_hosts() const;
  [[nodiscard]] int ranks_here() const;
  [[nodiscard]] Topology topology() const;
  void hold_scratch_of_hosts(const Reduction& reduction);
  void hold_scratch(std::size_t bytes, int sharers);
  void count(Op op, Tag tag, std::uint64_t bytes);
  // `bytes` as in RecordedCollective.
  void log_call(Op op, Tag tag, double bytes, Reduction reduction = {});
  [[nodiscard]] std::shared_ptr<Communicator> part(int rank, int size, int stride) const;

  RecordedWorld world_;
  std::shared_ptr<Recorder> recorder_;
  HeldBlock scratch_;
  HeldBlock sums_;  // of all_reduce over nodes
  bool has_sums_ = false;
  std::size_t scratch_bytes_ = 0;
};

std::shared_ptr<Communicator> connect_record(const RecordedWorld& world,
                                             std::shared_ptr<Recorder> recorder);

}  // namespace tessera::comm
