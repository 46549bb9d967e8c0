// fully_shard(): shards the parameters, gradients and optimizer state of an ordinary module over
// ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/optim/optimizer.h"
#include "sharding/context/context.h"
#include "sharding/policy/options.h"
#include "sharding/runtime/statistics.h"

namespace tessera {

class Runtime;
class StepRecorder;  // sharding/profiler/step_recorder.h

// One rank's part of one logical parameter. `local` holds elements [first, first +
// local.elements()) of it, row-major.
struct ShardedParameter {
  std::string name;
  Shape shape;
  Tensor local;
  std::int64_t first = 0;
  // The elements of `local` that this rank writes to checkpoints: replicas share the work, and
  // exactly one rank writes each element.
  std::int64_t save_first = 0;
  std::int64_t save_count = 0;
  // Whether an optimizer may have state for it: it was trained when its module was sharded, and may
  // be frozen now. An ignored parameter: it has a dtype that optimizers update.
  bool trainable = true;
};

// The sharded side of a module. The module itself is used as before (net.forward(x)). It has one
// ShardedModel at a time and should outlive it; when the module is destroyed first, only optimizer
// steps and saves still work. All calls are made on the thread that called fully_shard; collective
// ones by every rank. Calls of an object that was moved from, or unwrapped, are logic_errors.
//
// When a ShardedModel ends without unwrap(), the values are lost: the module's parameters have no
// memory, and a step of an optimizer over them is a logic_error.
class ShardedModel {
 public:
  // `owner`, which may be null, keeps the module alive.
  ShardedModel(nn::Module& module, const Context& context, const ShardingOptions& options,
               std::shared_ptr<nn::Module> owner = nullptr);
  ~ShardedModel();
  ShardedModel(ShardedModel&&) noexcept;
  ShardedModel& operator=(ShardedModel&&) noexcept;

  // This rank's fp32 parameters, with their gradients after a backward, for an optimizer.
  [[nodiscard]] std::vector<nn::NamedParameter> parameters() const;
  // The whole parameters of ShardingOptions::ignored_modules, which parameters() does not contain.
  // To train them, pass them to the optimizer behind parameters() and keep them equal on all ranks:
  // their gradients are this rank's own sums, neither averaged over the ranks nor clipped nor
  // divided by a loss scale. A save refuses ranks whose ignored parameters differ.
  [[nodiscard]] std::vector<nn::NamedParameter> ignored_parameters() const;
  // Collective. Throws Error(configuration) that names an ignored parameter in which two ranks
  // differ.
  void compare_ignored_parameters() const;
  // Both kinds together, for checkpoints: the ignored ones last.
  [[nodiscard]] std::vector<ShardedParameter> sharded_parameters() const;
  // The module's persistent buffers, for checkpoints. Each rank has its own whole ones, which its
  // forwards may change in their own way; rank 0 writes all of its own, and a load gives them to
  // every rank.
  [[nodiscard]] std::vector<ShardedParameter> sharded_buffers() const;

  // Collective. The norm over all gradients of parameters() before clipping, the same bits under
  // every strategy. Gradients are scaled to `max_norm` when above it (max_norm 0: only
  // measured; a negative number or NaN is a logic_error); the factor is applied when they are read.
  // `loss_scale` is what losses were multiplied by (sharding/context/loss_scaler.h): gradients are
  // divided by it first, once, however often this is called before the next backward.
  double clip_grad_norm(double max_norm);
  double clip_grad_norm(double max_norm, double loss_scale);
  // Collective. The norm over the gradients of those of parameters() for which `filter` is true; no
  // filter: of all. Changes nothing. The same bits under every strategy. The filter must return the
  // same on all ranks: Error(configuration) where ranks that share one copy of the model differ.
  // Ranks that hold a whole copy each (NO_SHARD) exchange nothing here, and are not compared.
  double grad_norm(const optim::ParameterFilter& filter = {}) const;

  // Backwards inside the scope add to local sums, without communication; the first one after it
  // reduces them all. The first scope allocates the sums, on every rank. An optimizer's zero_grad()
  // discards the sums of its parameters; clip_grad_norm(), a step and a save are logic_errors while
  // there are sums that were not reduced.
  class NoSync {
   public:
    explicit NoSync(ShardedModel& model);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::weak_ptr<Runtime> runtime_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // Collective, with the same value on every rank, and not in the middle of a backward: selects
  // whether later backwards reduce their gradients or add to local sums as in no_sync().
  void set_requires_gradient_sync(bool sync);
  // Collective as above, for ShardingOptions::defer_replica_sums (a logic_error without it):
  // selects whether later backwards sum their gradients between groups, or only within this rank's
  // group, where they are added up until the first backward that sums between groups. With a single
  // group it changes nothing. What no_sync() says of zero_grad() and of the other calls holds here,
  // too. FSDP2's set_requires_all_reduce.
  void set_requires_all_reduce(bool all_reduce);
  // Collective as above: selects whether parameters that stay gathered after a forward are freed
  // after the backward, or stay until the optimizer changes them. Error(configuration) for false
  // when nothing stays after a forward. The initial value is
  // ShardingOptions::reshard_after_backward.
  void set_reshard_after_backward(bool reshard);

  // Collective. Gathers one unit ahead of its use, by name; the root's name is empty. Its
  // parameters can be read from here on (with `async_op`: from the next call of this, or the unit's
  // forward), and are freed as usual: after a forward, by reshard(), or when the optimizer changes
  // them. When no pool buffer is free, it allocates memory, which is freed with the unit.
  void unshard(std::string_view unit = {}, bool async_op = false);
  // Collective. Frees the gathered parameters of one unit. A logic_error while a forward or a
  // backward uses it, and inside unsharded().
  void reshard(std::string_view unit = {});
  // Names of the units, the root first.
  [[nodiscard]] std::vector<std::string> units() const;

  // Collective. Parameters are whole and readable for the scope's lifetime, in memory that is freed
  // after it. Error(out_of_memory), on all ranks, leaves the model as it was.
  class Unsharded {
   public:
    explicit Unsharded(const std::shared_ptr<Runtime>& runtime);
    ~Unsharded();
    Unsharded(const Unsharded&) = delete;
    Unsharded& operator=(const Unsharded&) = delete;

   private:
    std::weak_ptr<Runtime> runtime_;
  };
  [[nodiscard]] Unsharded unsharded();

  // Collective. Gathers all parameters, calls `write`, which may change them (copy_from, a pointer
  // of data()) in the same way on every rank, and keeps the changes. Meanwhile each rank has its
  // own whole parameters, twice. Unchanged elements keep their fp32 values; changed ones have the
  // precision of the compute dtype. An exception leaves the parameters as they were;
  // Error(configuration), on all ranks, when the ranks wrote different values.
  void write_unsharded(const std::function<void()>& write);

  // Collective. Ends the sharding: the module has whole parameters of its own again, on the rank's
  // device, with the values and the dtype of the masters and the requires_grad of now, without
  // gradients. It may be sharded again, in another way. Optimizers over parameters() are of no more
  // use; their state goes through a checkpoint. Tensors that parameters() gave before can still be
  // read; writing to one is a logic_error, since it would change no module. A write through a
  // pointer that was taken before goes unnoticed, and is lost.
  void unwrap();

  [[nodiscard]] CommunicationStatistics communication() const;
  // The time that steps spend in each activity, from the recorder's first begin_step() on. A model
  // has one recorder; the first call makes it.
  [[nodiscard]] std::shared_ptr<StepRecorder> record();
  [[nodiscard]] HeldBytes held_bytes() const;  // without the optimizer's
  // One line for each unit: name, parameters, bytes of the flat parameter and of a shard.
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] const Context& context() const { return context_; }
  // A logic_error whose text begins with `what`, while sums of no_sync() backwards wait for a
  // reduction.
  void require_reduced(std::string_view what) const;

 private:
  [[nodiscard]] Runtime& runtime() const;

  Context context_;
  std::shared_ptr<Runtime> runtime_;
};

// Collective: every rank passes a module of the same structure with the same values of parameters
// and of buffers; modules made with the same seed, or on `meta`, agree. Throws Error(configuration)
// that names a parameter or a buffer in which they differ, unless
// ShardingOptions::sync_module_states. From here on nothing can be registered in the module.
inline ShardedModel fully_shard(nn::Module& module, const Context& context,
                                const ShardingOptions& options = {}) {
  return {module, context, options};
}
// The same for a handle; the ShardedModel keeps its module alive.
template <class Impl>
ShardedModel fully_shard(const nn::ModuleHandle<Impl>& module, const Context& context,
                         const ShardingOptions& options = {}) {
  return {*module, context, options, module.pointer()};
}
inline ShardedModel::Unsharded unsharded(ShardedModel& model) {
  return model.unsharded();
}

}  // namespace tessera
