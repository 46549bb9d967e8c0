// A small model, both planned and trained, to compare plans with runs.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/device/memory.h"
#include "engine/device/memory_step.h"
#include "sharding/plan/plan.h"
#include "sharding/sharding_testing.h"

namespace tessera::testing {

inline constexpr MemoryKind exact_kinds[] = {MemoryKind::parameters, MemoryKind::gradients,
                                             MemoryKind::optimizer, MemoryKind::communication};

struct PlannedCase {
  ShardingOptions sharding;
  int micro_batches = 1;
  bool sync_each_batch = true;
  optim::OptimizerFactory optimizer = {};  // none: AdamW
};

inline PlanOptions plan_options(const PlannedCase& what, const ToyTransformer& net) {
  PlanOptions options;
  options.sharding = what.sharding;
  options.micro_batches = what.micro_batches;
  options.sync_each_batch = what.sync_each_batch;
  options.optimizer = what.optimizer;
  options.loss = [&net](Device device) {
    const MemoryScope data(MemoryKind::other);
    const auto batch = toy_batch(0, 2);
    const Tensor ids = batch.ids.to(device);
    const Tensor targets = batch.targets.to(device);
    const MemoryScope compute(MemoryKind::activations);
    return net.loss(ids, targets);
  };
  return options;
}

inline MemoryPlan plan_toy(int world, const PlannedCase& what,
                           DeviceType device = DeviceType::cpu) {
  const DeviceGuard deferred(Device::meta());
  ToyTransformer net;
  return plan(net, {.ranks = world, .device = device}, plan_options(what, net));
}

struct Measured {
  RankMemory memory;
  std::uint64_t moved = 0;  // in the second step
};

// Two real steps of every rank.
inline std::vector<Measured> run_toy(int world, const PlannedCase& what) {
  std::vector<Measured> ranks(static_cast<std::size_t>(world));
  launch(world, [&](Context& context) {
    const OneThread one_thread;
    manual_seed(5);
    std::optional<ToyTransformer> net;
    {
      const DeviceGuard deferred(Device::meta());
      net.emplace();
    }
    ShardedModel model = fully_shard(*net, context, what.sharding);
    const std::unique_ptr<optim::Optimizer> optimizer =
        what.optimizer ? what.optimizer(model.parameters())
                       : std::make_unique<optim::AdamW>(model.parameters(), optim::AdamWOptions{});
    const PlanOptions options = plan_options(what, *net);
    Measured& mine = ranks[static_cast<std::size_t>(context.rank())];
    for (int step = 0; step < 2; ++step) {
      const MemoryStep memory(context.device());
      const std::uint64_t before = model.communication().bytes;
      for (int batch = 1; batch <= what.micro_batches; ++batch) {
        std::optional<ShardedModel::NoSync> local_only;
        if (what.sharding.defer_replica_sums) {
          model.set_requires_all_reduce(batch == what.micro_batches);
        }
        if (!what.sync_each_batch && batch < what.micro_batches) local_only.emplace(model);
        options.loss(context.device()).backward();
      }
      (void)model.clip_grad_norm(1.0, 1);
      optimizer->step();
      optimizer->zero_grad();
      mine.moved = model.communication().bytes - before;
    }
    mine.memory = measure_memory(context);
  });
  return ranks;
}

}  // namespace tessera::testing
