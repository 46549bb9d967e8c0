// Between a sharded model and its checkpoint: ts::save and ts::load.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "engine/optim/optimizer.h"
#include "sharding/fully_shard.h"

namespace tessera::checkpoint {

// The logical tensors of a model and, unless null, of its optimizer (made from model.parameters()),
// with the pieces that this rank writes (every element once over all ranks) or reads (all that it
// holds). Pieces point into the model's and optimizer's memory or, of
// what is offloaded, into its files.
enum class Direction : std::uint8_t { save, load };
State state_of(const ShardedModel& model, optim::Optimizer* optimizer, Direction direction);

}  // namespace tessera::checkpoint

namespace tessera {

struct SaveOptions {
  std::int64_t step = 0;
  checkpoint::StateDictType type = checkpoint::StateDictType::full;
  DType model_dtype = DType::float32;
  int keep = 0;
  Scalars scalars = {};  // whatever the program wants back, the same on every rank
  std::map<std::string, std::string> files = {};     // config.json ..., from rank 0
  std::uint64_t max_file_size = 0;                   // as in checkpoint::SaveOptions
  std::chrono::milliseconds stall_timeout{300'000};  // likewise
};

// Of a save with these options: state, scalars included, and what the files are like.
checkpoint::State state_to_save(const ShardedModel& model, optim::Optimizer& optimizer,
                                const SaveOptions& options);
checkpoint::SaveOptions file_options(const SaveOptions& options);

// Collective. Writes folder/step-N and returns its path.
std::string save(const Context& context, const std::string& folder, const ShardedModel& model,
                 optim::Optimizer& optimizer, const SaveOptions& options = {});

// Collective. Fills model and optimizer from a step folder written by any world size, strategy and
// type; returns its scalars.
Scalars load(const Context& context, const std::string& step_folder, const ShardedModel& model,
             optim::Optimizer& optimizer);

}  // namespace tessera
