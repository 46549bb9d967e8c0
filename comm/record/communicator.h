// The communicator of a plan: one rank alone, whose peers are imagined. Collectives return at once;
// their buffers are counted and have no memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/record/recorder.h"

namespace tessera::comm {

class Topology;

// The ranks that are planned for.
struct RecordedWorld {
  int rank = 0;
  int size = 1;
  int stride = 1;  // between the numbers that its ranks have in the world
  Device device = Device::planned();
  // Ranks see one memory (`shm`, `local`): gathered parameters exist once for all of them. Else
  // each rank has its own (`nccl`).
  bool one_memory = true;
  // Ranks of several hosts, as many on each, host after host (`shm+tcp`): one memory a host. 0:
  // one.
  int ranks_per_host = 0;
  bool fixed_order = false;  // as ConnectOptions says it, for `nccl`
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
  // What all ranks would say if they said what this one says.
  std::vector<std::string> exchange(std::string_view message, Tag tag) override;
  std::string broadcast(std::string_view message, int root, Tag tag) override;
  void barrier(Tag tag) override;
  // A logic_error with more than one rank: what the others would choose is not known here.
  std::shared_ptr<Communicator> split(int color, int key, std::string_view name) override;
  std::shared_ptr<Communicator> split_blocks(int ranks, std::string_view name) override;
  std::shared_ptr<Communicator> split_across_blocks(int ranks, std::string_view name) override;
  std::shared_ptr<Communicator> duplicate(std::string_view name) override;
  [[nodiscard]] std::size_t held_bytes() const override {
    return recorder_->held_memory()->bytes();
  }
  void abort(std::string_view /*reason*/) noexcept override {}

 private:
  // Its ranks are on several hosts, and this many of them on this rank's.
  [[nodiscard]] bool over_hosts() const;
  [[nodiscard]] int ranks_here() const;
  [[nodiscard]] Topology topology() const;
  void hold_scratch_of_hosts(const Reduction& reduction);
  void hold_scratch(std::size_t bytes, int sharers);
  void count(Op op, Tag tag, std::uint64_t bytes);
  // `bytes` as RecordedCollective has them.
  void log_call(Op op, Tag tag, double bytes, Reduction reduction = {});
  [[nodiscard]] std::shared_ptr<Communicator> part(int rank, int size, int stride) const;

  RecordedWorld world_;
  std::shared_ptr<Recorder> recorder_;
  HeldBlock scratch_;
  HeldBlock sums_;  // of all_reduce over hosts
  bool has_sums_ = false;
  std::size_t scratch_bytes_ = 0;
};

std::shared_ptr<Communicator> connect_record(const RecordedWorld& world,
                                             std::shared_ptr<Recorder> recorder);

}  // namespace tessera::comm
