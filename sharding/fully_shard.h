// fully_shard(): from an ordinary module to one whose parameters, gradients and optimizer state are
// spread over ranks.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/context.h"
#include "sharding/options.h"
#include "sharding/statistics.h"

namespace tessera {

class Runtime;
class StepRecorder;  // sharding/step_recorder.h

// One rank's part of one logical parameter. `local` holds elements [first, first +
// local.elements()) of it, row-major.
struct ShardedParameter {
  std::string name;
  Shape shape;
  Tensor local;
  std::int64_t first = 0;
  // Of `local`, the elements that this rank writes to checkpoints: replicas share the work, every
  // element is written once.
  std::int64_t save_first = 0;
  std::int64_t save_count = 0;
};

// The sharded side of a module. The module itself is used as before (net.forward(x)); it must
// outlive this object. All calls are made on the thread that called fully_shard; collective ones by
// every rank.
class ShardedModel {
 public:
  ShardedModel(nn::Module& module, const Context& context, const ShardingOptions& options);
  ~ShardedModel();
  ShardedModel(ShardedModel&&) noexcept;
  ShardedModel& operator=(ShardedModel&&) noexcept;

  // This rank's fp32 parameters with their gradients after backward: for an optimizer.
  [[nodiscard]] std::vector<nn::NamedParameter> parameters() const;
  // Those of ShardingOptions::ignored_modules, whole, which parameters() has not. Whoever trains
  // them gives them to the optimizer behind parameters(), and sees to it that they stay the same on
  // all ranks: their gradients are this rank's own sums, neither averaged over the ranks nor
  // clipped nor divided by a loss scale. A save refuses ranks that have drifted apart.
  [[nodiscard]] std::vector<nn::NamedParameter> ignored_parameters() const;
  // Collective. Error(configuration) that names an ignored parameter in which two ranks differ.
  void compare_ignored_parameters() const;
  // Of both, what checkpoints are made of: the ignored ones last.
  [[nodiscard]] std::vector<ShardedParameter> sharded_parameters() const;

  // Collective. The norm over all gradients of parameters() before clipping, the same bits under
  // every strategy. Gradients are scaled to `max_norm` when above it (max_norm <= 0: only
  // measured); the factor is applied when they are read. `loss_scale` is what losses were
  // multiplied by (sharding/loss_scaler.h): gradients are divided by it first, once.
  double clip_grad_norm(double max_norm, double loss_scale = 1);

  // Backwards inside the scope add to local sums, without communication; the first one after it
  // reduces them all. The first scope allocates the sums, on every rank.
  class NoSync {
   public:
    explicit NoSync(ShardedModel& model);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Runtime& runtime_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // Collective, with the same values on every rank, and not in the middle of a backward: from now
  // on backwards reduce their gradients, or add to local sums as in no_sync().
  void set_requires_gradient_sync(bool sync);
  // The same: whether what stays gathered after a forward is freed after the backward, or stays
  // until the optimizer changes it. Error(configuration) for false where nothing stays after a
  // forward. It begins as ShardingOptions::reshard_after_backward.
  void set_reshard_after_backward(bool reshard);

  // Collective. Gathers one unit ahead of its use, by name; the root's is empty. Its parameters can
  // be read from here on (with `async_op`: from the next call of this, or the unit's forward), and
  // are freed as ever: after a forward, by reshard(), or when the optimizer changes them. Beyond
  // the buffers that units take turns in it makes memory, given back with the unit.
  void unshard(std::string_view unit = {}, bool async_op = false);
  // Collective. Frees what is gathered of one unit. A logic_error while a forward or a backward is
  // at work on it, and inside unsharded().
  void reshard(std::string_view unit = {});
  // Names of the units, the root's first.
  [[nodiscard]] std::vector<std::string> units() const;

  // Collective. Parameters are whole, to be read, for the scope's lifetime, in memory that is given
  // back after it. Error(out_of_memory), of all ranks, leaves the model as it was.
  class Unsharded {
   public:
    explicit Unsharded(Runtime& runtime);
    ~Unsharded();
    Unsharded(const Unsharded&) = delete;
    Unsharded& operator=(const Unsharded&) = delete;

   private:
    Runtime& runtime_;
  };
  [[nodiscard]] Unsharded unsharded();

  [[nodiscard]] CommunicationStatistics communication() const;
  // What steps spend their time on, from the recorder's first begin_step() on. One for a model; the
  // first call makes it.
  [[nodiscard]] std::shared_ptr<StepRecorder> record();
  [[nodiscard]] HeldBytes held_bytes() const;  // without the optimizer's
  // One line a unit: name, parameters, bytes of the flat buffer and of a share.
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] const Context& context() const { return context_; }

 private:
  Context context_;
  std::unique_ptr<Runtime> runtime_;
};

// Collective: every rank passes a module of the same structure. Values are each rank's own part of
// its own module; modules made with the same seed, or on `meta`, agree.
inline ShardedModel fully_shard(nn::Module& module, const Context& context,
                                const ShardingOptions& options = {}) {
  return {module, context, options};
}
inline ShardedModel::Unsharded unsharded(ShardedModel& model) {
  return model.unsharded();
}

}  // namespace tessera
