// The schedule: when units are gathered, freed and reduced.
//
// Three threads of control. The compute stream (the rank's thread) runs hooks and waits; the gather
// stream casts, publishes and waits for parameters; the reduce stream sums gradients. Gathers and
// reductions have a communicator each, so that neither waits in the other's queue. All decisions
// are taken on the compute stream in program order, so every rank takes the same.
//
// On a GPU each of the three has a queue, and what one needs of another is a join, in one place:
// side streams begin after what the compute stream had put into its queue (Stream::enqueue); the
// compute stream joins a gather in await_gather(), a buffer that has been reduced before it writes
// into it again (provide_gradient, add_to_unsynchronised), and the last reduction at the end of a
// backward. Memory goes back to the pool on the compute stream, after its join.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/nn/module.h"
#include "engine/stream.h"
#include "sharding/comm/communicator.h"
#include "sharding/options.h"
#include "sharding/statistics.h"
#include "sharding/unit.h"

namespace tessera {

class Runtime {
 public:
  Runtime(nn::Module& root, comm::Communicator& world, const ShardingOptions& options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  [[nodiscard]] const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  [[nodiscard]] const ShardingOptions& options() const { return options_; }
  [[nodiscard]] int world_size() const { return world_size_; }
  [[nodiscard]] int replicas() const { return world_size_ / shards_; }
  [[nodiscard]] int replica() const { return replica_; }
  [[nodiscard]] Device device() const { return device_; }
  // The ranks that hold one copy between them; for small messages of the compute stream.
  [[nodiscard]] comm::Communicator& shard_group() { return *control_; }

  void set_synchronise(bool on) { synchronise_ = on; }
  [[nodiscard]] bool synchronises() const { return synchronise_; }
  // Gathers every unit and keeps it until unpin().
  void pin();
  void unpin();
  // Drops gathered copies because the master shards are about to change.
  void invalidate();

  [[nodiscard]] CommunicationStatistics statistics() const;

 private:
  void connect(comm::Communicator& world);
  void create_units(nn::Module& root);
  void create_hooks(nn::Module& module, Unit& unit);
  void watch_storages(Unit& unit);

  // Hooks.
  void before_forward(Unit& unit);
  void after_forward(Unit& unit);
  void before_backward(Unit& unit);
  void after_backward(Unit& unit);
  void at_end_of_backward();
  void abandon_backward();

  // Parameters.
  void gather(Unit& unit, comm::Phase phase);
  void await_gather(Unit& unit);
  void reshard(Unit& unit);
  [[nodiscard]] bool is_last_in_forward(const Unit& unit) const;
  void prefetch_forward(const Unit& unit);
  void prefetch_backward(const Unit& unit);
  [[nodiscard]] bool shares_pool(const Unit& unit) const;

  // Gradients.
  void provide_gradient(Unit& unit);
  void reduce(Unit& unit);
  void add_to_unsynchronised(Unit& unit);
  void reduce_unsynchronised(Unit& unit);
  void enqueue_reduction(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer, DType dtype);
  void count_reduction(const Unit& unit, DType wire, DType sums);
  void expect_end_of_backward();
  [[nodiscard]] std::shared_ptr<comm::Buffer> allocate_gradient(const Unit& unit,
                                                                std::size_t bytes);

  void allocate_partial_sums();
  void count_buffer(const comm::Buffer& buffer);
  // Work for a side stream, and the compute stream's wait for it.
  Event enqueue(Stream& stream, std::function<void()> work);
  void run(Stream& stream, std::function<void()> work);
  void join(const Event& event);

  struct GradientBuffer {
    std::shared_ptr<comm::Buffer> buffer;
    Event writable;
  };

  ShardingOptions options_;
  StrategyRow row_;
  Device device_;
  int world_size_ = 1;
  int shards_ = 1;
  int replica_ = 0;
  int reduction_group_ = 0;
  std::shared_ptr<comm::Communicator> gather_group_;     // shard group, gather stream
  std::shared_ptr<comm::Communicator> reduce_group_;     // shard group, reduce stream
  std::shared_ptr<comm::Communicator> reduce_replicas_;  // ranks with the same shard, reduce stream
  std::shared_ptr<comm::Communicator> control_;          // shard group, compute stream
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::shared_ptr<comm::Buffer>> free_parameter_buffers_;
  std::vector<GradientBuffer> free_gradient_buffers_;
  std::shared_ptr<comm::Buffer> partial_sums_;  // between the two reductions of HYBRID
  std::size_t parameter_buffers_ = 0;           // of the pool, free or not
  std::size_t buffers_before_pin_ = 0;
  std::size_t pool_parameter_bytes_ = 0;
  std::size_t pool_gradient_bytes_ = 0;

  std::vector<Unit*> forward_order_;  // of the last complete forward
  std::vector<Unit*> current_order_;
  Event last_reduction_;
  Event writable_again_;  // of the buffer that was reduced last
  bool synchronise_ = true;
  bool end_expected_ = false;
  std::uint64_t pass_ = 0;
  CommunicationStatistics statistics_;
  StallClock stalls_;
  std::vector<nn::Module*> hooked_;
  std::unique_ptr<Stream> gather_stream_;  // last: their threads stop before what they use goes
  std::unique_ptr<Stream> reduce_stream_;
};

}  // namespace tessera
