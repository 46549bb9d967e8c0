// The schedule: when units are gathered, freed and reduced.
//
// Three threads of control. The compute stream (the rank's thread) runs hooks and waits; the gather
// stream casts, publishes and waits for parameters; the reduce stream sums gradients. Under
// HYBRID_* a fourth one sums the reduce stream's results between replicas. Each has its own
// communicators, so none waits in another's queue. The compute stream makes all decisions in
// program order, so every rank makes the same.
//
// allocate() allocates all memory, from the table of sharding/memory/buffer_plan.h; the first
// no_sync() adds its sums. After that, memory circulates in fixed sets.
//
// On a GPU each of them has a queue, and one queue joins another only in these places: side streams
// begin after the work that the compute stream had put into its queue (Stream::enqueue); the
// compute stream joins a gather in await_gather(), a reduced buffer before it writes into it again
// (lend_gradient, add_to_local_sum), and the last reduction at the end of a backward. The compute
// stream returns memory to the pool, after its join.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "engine/device/stream.h"
#include "engine/module_call.h"
#include "engine/nn/module.h"
#include "sharding/memory/buffer_plan.h"
#include "sharding/policy/options.h"
#include "sharding/profiler/recording.h"
#include "sharding/runtime/call_order.h"
#include "sharding/runtime/statistics.h"
#include "sharding/runtime/unit_state.h"
#include "sharding/units/activation_checkpointing.h"
#include "sharding/units/ignored_parameters.h"
#include "sharding/units/kept_precision.h"
#include "sharding/units/structure.h"
#include "sharding/units/unit.h"

namespace tessera {

class PrivateCopy;

class Runtime {
 public:
  // Shards the module. Allocates no collective memory yet, so ranks can first compare their units.
  // Modules below the root live as long as this object; so does the root when `owner` holds it.
  Runtime(nn::Module& root, comm::Communicator& world, const ShardingOptions& options,
          std::shared_ptr<nn::Module> owner = nullptr);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  // Collective. Allocates everything that steps need; call it before the first step.
  void allocate();

  [[nodiscard]] const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  [[nodiscard]] IgnoredParameters& ignored() const { return *ignored_; }
  [[nodiscard]] const OffloadFiles& files() const { return *files_; }
  [[nodiscard]] const ShardingOptions& options() const { return options_; }
  [[nodiscard]] int world_size() const { return world_size_; }
  [[nodiscard]] int replicas() const { return world_size_ / shards_; }
  [[nodiscard]] int replica() const { return replica_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] Device device() const { return device_; }
  // For small messages of the compute stream, between the ranks that hold one copy.
  [[nodiscard]] comm::Communicator& control() { return *control_; }
  // The table of all buffers; `no_sync`: with the sums of passes inside no_sync().
  [[nodiscard]] BufferPlan plan(bool no_sync) const;

  // Backwards add to local sums until resume_synchronising(). The first call is collective.
  void stop_synchronising();
  void resume_synchronising() {
    synchronise_ = true;
    in_no_sync_ = false;
  }
  // As documented in ShardedModel (sharding/fully_shard.h).
  void unshard_by_hand(std::string_view unit, bool async_op);
  void reshard_by_hand(std::string_view unit);
  void set_requires_gradient_sync(bool sync);
  void set_reshard_after_backward(bool reshard);
  // Gathers every unit and keeps it until let_go(); scopes nest. Error(out_of_memory) leaves
  // everything as it was.
  void hold();
  void let_go() noexcept;
  // As documented in ShardedModel.
  void write_unsharded(const std::function<void()>& write);
  void unwrap();

  // A logic_error, in the name of `what`, while sums of no_sync() backwards wait for a reduction.
  void require_reduced(std::string_view what) const;
  // clip_grad_norm was given the factor of the losses (1 counts as given).
  void note_loss_scale() { loss_scale_is_known_ = true; }

  [[nodiscard]] CommunicationStatistics statistics() const;
  // From the recorder's first step on, the runtime records its work in it.
  const std::shared_ptr<StepRecorder>& record();
  [[nodiscard]] StepRecorder* recorder() const { return recorder_.get(); }

 private:
  void connect(comm::Communicator& world);
  void choose_recomputation(nn::Module& root, const std::vector<UnitPlan>& plan);
  void create_files(const std::vector<UnitPlan>& plan);
  void create_units(std::vector<UnitPlan> plan);
  void create_hooks(nn::Module& module, Unit& unit);
  void watch_storages(Unit& unit);
  void watch_masters(Unit& unit);
  void own_modules(nn::Module& root);
  void compare_values(std::vector<UnitPlan>& plan, std::vector<OwnedParameter>& ignored);
  [[nodiscard]] UnitState& state_of(const Unit& unit) {
    return states_[static_cast<std::size_t>(unit.index())];
  }

  [[nodiscard]] Unit& unit_named(std::string_view name);
  void form_reshard_groups(const std::vector<UnitPlan>& plan);

  // Memory.
  void allocate(const PlannedBuffer& planned);
  [[nodiscard]] std::shared_ptr<comm::Buffer> allocate_parameters(comm::Communicator& ranks,
                                                                  std::size_t bytes);
  void allocate_part(UnitState& state, std::size_t bytes);
  [[nodiscard]] std::shared_ptr<comm::Buffer> allocate_gradient(std::string_view name,
                                                                std::size_t bytes);
  // For a communicator that is used on the stream; `reserved` are its bytes before and after.
  void reserve_scratch(comm::Communicator& group, Stream& stream, std::size_t bytes,
                       std::size_t& reserved);
  void count_buffer(const comm::Buffer& buffer);
  void drop(std::shared_ptr<comm::Buffer>& buffer);

  // Hooks.
  void before_forward(Unit& unit, const ModuleCall& call);
  void after_forward(Unit& unit, const ModuleCall& call);
  void abandon_forward(Unit& unit, const ModuleCall& call);
  void expect_backward(Unit& unit, const ModuleCall& call);
  void before_backward(Unit& unit, const ModuleCall& call);
  void after_backward(Unit& unit, const ModuleCall& call);
  void use_root();  // one of the root's parameters is needed but not gathered
  void at_end_of_backward();
  void abandon_backward();

  // Parameters.
  enum class Need : std::uint8_t { now, soon };
  void gather(Unit& unit, comm::Phase phase, Need need = Need::now);
  [[nodiscard]] ParameterPool& pool_of(const UnitState& state);
  [[nodiscard]] bool take_parameter_buffer(Unit& unit, Need need);
  bool evict_an_idle_unit(ParameterPool& pool, Need need);
  void start_gather(Unit& unit, comm::Phase phase);
  // The work of a gather, decided on the compute stream.
  struct Gathering {
    std::shared_ptr<comm::Buffer> buffer;
    comm::Tag tag;
    Unit::Part part = Unit::Part::whole;
    bool from_parts = false;  // that fewer ranks kept
    bool keeps_part = false;
  };
  [[nodiscard]] Gathering next_gathering(Unit& unit, comm::Tag tag);
  [[nodiscard]] static const GatherRanges& ranges_of(const UnitState& state,
                                                     const Gathering& gathering);
  void find_ranges(Unit& unit);
  void run_gather(Unit& unit, const Gathering& gathering);
  void await_gather(Unit& unit);
  void reshard(Unit& unit);
  void reshard_unless_used(Unit& unit);
  void gather_all();
  // Prefetches from a list of coming units, up to the limit.
  void prefetch(std::vector<int> next, comm::Phase phase);
  void prefetch_forward();
  void prefetch_backward();
  void prefetch_recomputation(const ModuleCall& call);
  [[nodiscard]] bool stays_after_forward(const Unit& unit) const;
  [[nodiscard]] bool stays_between_passes(const Unit& unit);
  [[nodiscard]] bool stays_after_backward(const Unit& unit);
  // Some parameters of the unit are about to change, trainable or frozen ones.
  void invalidate(Unit& unit, bool trainable, Storage::Write how);
  // A logic_error when a kept copy is older than its masters; only a write through a pointer causes
  // it.
  void check_copy(const Unit& unit) const;
  // Called before a parameter's requires_grad changes: the rest of the unit follows, or this
  // throws.
  void toggle_requires_grad(Unit& unit, const detail::TensorData& tensor);
  void compare_toggles();
  [[nodiscard]] std::vector<std::string> exchange_toggles(const std::string& mine);
  void compare_written(const std::vector<PrivateCopy>& copies);
  // Drops gathered parameters, including frozen segments.
  void drop_copies(Unit& unit);
  // Whole masters, one tensor for each slot. Collective.
  [[nodiscard]] std::vector<Tensor> gather_masters(Unit& unit);

  // Gradients.
  void allocate_local_sums();
  void lend_gradient(Unit& unit);
  void give_gradient_back(Unit& unit, Event writable);
  void reduce(Unit& unit);
  void add_to_local_sum(Unit& unit);
  void drop_local_sum(Unit& unit, const detail::TensorData& parameter);
  void set_local_sum(UnitState& state, bool is_set);
  void zero_dropped_sums(Unit& unit);
  void before_step(const Unit& unit) const;
  void reduce_local_sum(Unit& unit);
  struct Reduced {
    Event done;      // the sums are in the gradient shard
    Event writable;  // the buffer may be written again
  };
  Reduced enqueue_reduction(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer, DType dtype);
  // Leaves this shard's sums in the given memory.
  using Reduction = std::function<void(std::byte* sums)>;
  [[nodiscard]] Reduction reduction_of(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer,
                                       DType dtype, bool accumulate, comm::Tag tag);
  // The two reductions of HYBRID_*: within the group into partial sums, and between the groups.
  struct PartialSums {
    std::shared_ptr<comm::Buffer> buffer;
    Event writable;
  };
  [[nodiscard]] Event sum_within_group(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer,
                                       DType dtype, PartialSums& sums, comm::Tag tag);
  [[nodiscard]] Reduction reduction_across(Unit& unit, const PartialSums& sums, bool accumulate,
                                           comm::Tag tag);
  [[nodiscard]] WireFormat wire_of_reduction(DType dtype) const;
  void count_reduction(const Unit& unit, DType dtype, DType sums);
  // Bytes that reach this rank from others.
  [[nodiscard]] std::uint64_t scattered_bytes(const Unit& unit, DType dtype) const;
  [[nodiscard]] std::uint64_t reduced_bytes(const Unit& unit, DType dtype, DType sums) const;
  void expect_end_of_backward();
  void end_pass();

  // Puts work into a side stream; the compute stream waits for it.
  template <class Work>
  Event enqueue(Stream& stream, Work work) {
    const ComputeScope here(stream.is_serial() ? recorder_.get() : nullptr,
                            SpanKind::communication);
    return stream.enqueue(for_worker(std::move(work)));
  }
  template <class First, class Second>
  std::pair<Event, Event> enqueue(Stream& stream, First first, Second second) {
    const ComputeScope here(stream.is_serial() ? recorder_.get() : nullptr,
                            SpanKind::communication);
    Stream::Two events =
        stream.enqueue(for_worker(std::move(first)), for_worker(std::move(second)));
    return {std::move(events.first), std::move(events.second)};
  }
  template <class Work>
  [[nodiscard]] std::function<void()> for_worker(Work work) {
    return [control = control_.get(), work = std::move(work)] {
      const comm::WorkerScope scope(*control);
      work();
    };
  }
  [[nodiscard]] static Span span_of(Lane lane, SpanKind kind, const Unit& unit, comm::Phase phase,
                                    std::uint64_t bytes) {
    return {kind, lane, phase, Exposed::other, unit.index(), bytes};
  }
  void attempt(Stream& stream, std::function<void()> work);
  void join(const Event& event, Exposed what, const Unit& unit);
  void join_reduction(const Event& event, const Unit& unit) {
    join(event, shards_ == 1 ? Exposed::all_reduce : Exposed::reduce, unit);
  }
  [[nodiscard]] bool sums_in_two_levels() const { return shards_ > 1 && replicas() > 1; }
  [[nodiscard]] comm::Communicator& first_reduction_group() {
    return shards_ == 1 ? *reduce_replicas_ : *reduce_group_;
  }

  std::vector<std::shared_ptr<nn::Module>> owned_modules_;  // first member: destroyed last
  nn::Module* root_;
  std::weak_ptr<const void> root_life_;
  std::shared_ptr<const std::string> no_registration_;
  comm::Communicator* world_;  // used on the compute stream
  ShardingOptions options_;
  StrategyRow row_;
  Device device_;
  int world_size_ = 1;
  int rank_ = 0;
  int shards_ = 1;
  int replica_ = 0;
  int reduction_group_ = 0;
  std::shared_ptr<comm::Communicator> gather_group_;  // shard group, gather stream
  std::shared_ptr<comm::Communicator> reduce_group_;  // shard group, reduce stream
  std::shared_ptr<comm::Communicator>
      reduce_replicas_;                          // ranks with the same shard, last of these streams
  std::shared_ptr<comm::Communicator> control_;  // shard group, compute stream
  ParameterPool whole_;                          // gathered from all ranks that hold one copy
  std::map<int, ParameterPool> resharded_;  // by the number of ranks that a unit is resharded to
  std::unique_ptr<IgnoredParameters> ignored_;
  std::unique_ptr<OffloadFiles> files_;  // before the units, which use it
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<UnitState> states_;  // by Unit::index()
  std::vector<GradientMemory> free_gradient_buffers_;
  std::size_t pool_gradient_bytes_ = 0;
  std::vector<PartialSums> partial_sums_;  // between the two reductions of HYBRID_*, used in turns
  std::size_t next_partial_sums_ = 0;
  bool has_local_sums_ = false;
  std::size_t reduce_scratch_ = 0;  // bytes that the communicators have made
  std::size_t replicas_scratch_ = 0;

  CallOrder order_;
  std::vector<CallOrder::Call> backward_calls_;  // of this backward, in its order
  std::size_t next_backward_ = 0;                // the next place in them
  std::vector<int> expected_;                    // units with UnitState::expected
  Event last_reduction_;
  bool synchronise_ = true;
  int unreduced_sums_ = 0;   // units whose local sum is set
  bool in_no_sync_ = false;  // set by a scope
  bool reshard_after_backward_ = true;
  bool end_expected_ = false;
  int held_ = 0;          // unsharded() scopes
  bool writing_ = false;  // in write_unsharded()
  // The first parameter whose requires_grad has changed since the ranks last compared theirs.
  std::optional<std::string> toggled_;
  bool loss_scale_is_known_ = false;
  std::uint64_t pass_ = 0;
  CommunicationStatistics statistics_;
  StallClock stalls_;
  std::shared_ptr<StepRecorder> recorder_;  // null: not recording
  std::vector<nn::Module*> hooked_;
  std::unique_ptr<RecomputedModules> recomputed_;
  std::unique_ptr<KeptPrecision> kept_;
  std::shared_ptr<Runtime*> self_;         // for hooks of graphs that live longer
  std::unique_ptr<Stream> gather_stream_;  // last members: their threads end first
  std::unique_ptr<Stream> reduce_stream_;
  std::unique_ptr<Stream> across_stream_;  // of HYBRID_*: sums between replicas
};

}  // namespace tessera
