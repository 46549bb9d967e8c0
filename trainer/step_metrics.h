// The numbers of one training step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/spikes.h"

namespace tessera {

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  float loss = 0;         // the mean of all batches', weighted if the task weighs them
  float grad_norm = 0;    // before clipping
  double lr = 0;
  double tokens_per_s = 0;   // of the whole world
  double samples_per_s = 0;  // of the whole world
  double step_s = 0;
  // The most memory that a rank has used so far: resident memory of its process; on a GPU
  // everything from the arena, including free blocks in the pools' caches.
  std::int64_t peak_bytes = 0;
  std::int64_t cached_bytes = 0;  // free blocks in the pool of the rank that has the most
  std::int64_t comm_bytes = 0;    // moved by this step's collectives of a rank
  double exposed_comm_s = 0;      // time for which computation waited for communication
  double data_wait_s = 0;         // time for which the slowest rank waited for its data
  // With TrainerOptions::rank_weights: the samples of each rank in a micro-batch of this step, and
  // those of the next step, if they change.
  std::vector<std::int64_t> rank_samples = {};
  std::vector<std::int64_t> rebalanced_to = {};
  // With rank_weights or deal_by_cost: the time by which the slowest rank has computed longer than
  // the mean of the ranks, as a part of the mean.
  std::optional<double> imbalance = std::nullopt;
  // fp16: the factor of this step's loss, and the number of steps that overflowed until now.
  std::optional<double> loss_scale = std::nullopt;
  std::int64_t skipped_steps = 0;
  // Task::metric_names() with the means of all batches, weighted as the loss.
  std::vector<std::pair<std::string, double>> of_task = {};
  // Set if the step was not used: the optimizer has not changed anything.
  std::optional<Spike> spike = std::nullopt;
};

}  // namespace tessera
