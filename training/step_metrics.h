// The numbers of one training step.
#pragma once

#include <cstdint>
#include <optional>

namespace tessera::cli {

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  float loss = 0;         // mean over the world's tokens
  float grad_norm = 0;    // before clipping
  double lr = 0;
  double tokens_per_s = 0;   // of the whole world
  double samples_per_s = 0;  // of the whole world
  double step_s = 0;
  // The most that a rank took so far: resident memory of its process; on a GPU everything from the
  // arena, blocks in the pools' caches included.
  std::int64_t peak_bytes = 0;
  std::int64_t cached_bytes = 0;  // free blocks that a rank's pool keeps, the largest rank's
  std::int64_t comm_bytes = 0;    // moved by a rank's collectives in this step
  double exposed_comm_s = 0;      // that computation waited for communication
  double data_wait_s = 0;         // that the rank that waited longest waited for its data
  // fp16: what this step's loss was multiplied by, and the steps that overflowed until now.
  std::optional<double> loss_scale = std::nullopt;
  std::int64_t skipped_steps = 0;
};

}  // namespace tessera::cli
