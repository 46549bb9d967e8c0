// Prunes the weights of a sharded model while it is trained.
//
// Weights are chosen by the fp32 masters of all ranks together, so the same elements are zero under
// every strategy and on any world. What is pruned is where the weights are zero: a run that goes on
// from a checkpoint needs nothing but them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/tensor.h"
#include "sharding/fully_shard.h"
#include "trainer/pruning/groups.h"
#include "trainer/pruning/input_norms.h"
#include "trainer/pruning/options.h"
#include "trainer/pruning/selection.h"

namespace tessera {

class Pruner {
 public:
  // Throws Error(configuration) that names a weight that the model lacks, does not train, or whose
  // inputs are not groups of four. The model and its module must outlive it.
  Pruner(PruningOptions options, const ShardedModel& model, nn::Module& module);

  // Around the optimizer's step with this number, from 1: begin_step() keeps the places of zeros in
  // a byte for each of this rank's elements, and end_step() sets them to zero again.
  void begin_step(std::int64_t step);
  void end_step(std::int64_t step);
  // After end_step(), or after a step that the optimizer did not take. Collective. Chooses weights
  // if the options say so. A planned rank has no values, and chooses nothing. A method that needs
  // the norms of inputs calls calibrate(options.calibration_batches), which runs the module's
  // forward on so many batches.
  void choose(std::int64_t step, const Context& context,
              const std::function<void(std::int64_t batches)>& calibrate);

 private:
  // Whether zeros stay zero in this step.
  [[nodiscard]] bool keeps_zeros(std::int64_t step) const { return step > options_.begin; }
  void choose_by_magnitude(double sparsity, const RankExchange& exchange,
                           const std::function<void(std::size_t, std::vector<std::uint8_t>)>& use);
  // The zeros of a group of each weight.
  [[nodiscard]] std::vector<std::int64_t> zeros_of_groups(double sparsity) const;
  // The runs with values |weight| * norm of the input.
  [[nodiscard]] std::vector<PrunedRun> weighed_runs(
      const std::vector<std::vector<float>>& norms) const;

  PruningOptions options_;
  std::vector<Tensor> weights_;  // this rank's masters
  std::vector<PrunedRun> runs_;
  std::vector<std::int64_t> elements_;  // of the whole weights
  std::vector<GroupLayout> layouts_;
  std::vector<WatchedLayer> layers_;  // of methods that need the norms of inputs
  std::vector<Tensor> kept_;          // in a step
};

}  // namespace tessera
