// Between a sharded model and its checkpoint: ts::save, ts::load, ts::latest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/optim/optimizer.h"
#include "sharding/fully_shard.h"

namespace tessera::checkpoint {

// The logical tensors of a model and, unless null, of its optimizer, with the pieces that this rank
// writes (every element once over all ranks) or reads (all that it holds). Pieces point into the
// model's and optimizer's memory or, for offloaded state, into its files.
enum class Direction : std::uint8_t { save, load };
State state_of(const ShardedModel& model, optim::Optimizer* optimizer, Direction direction,
               const StateNames& names = {});
// The model's part alone. A save takes the optimizer's averages for the parameters, if it has any
// (Optimizer::average_state()).
std::vector<LogicalTensor> model_of(const ShardedModel& model, optim::Optimizer* optimizer,
                                    Direction direction, const StateNames& names = {});

}  // namespace tessera::checkpoint

namespace tessera {

// options.step, or the largest step count of the optimizer's parameters.
std::int64_t step_of_save(const optim::Optimizer& optimizer, const SaveOptions& options);

// The state of a save with these options, its scalars included.
checkpoint::State state_to_save(const ShardedModel& model, optim::Optimizer& optimizer,
                                const SaveOptions& options);

// Collective. Writes folder/step-N. The result has the path, the run that the step belongs to (give
// its `line` to the next save's options), and problems that did not fail the step.
checkpoint::Saved save(const Context& context, const std::string& folder, const ShardedModel& model,
                       optim::Optimizer& optimizer, const SaveOptions& options = {});

// Collective. Fills model and optimizer from a step folder written by any world size, strategy and
// type; returns its scalars. A parameter that is frozen after fully_shard() and was trained before
// keeps its optimizer state over a save and a load, on whichever side it is frozen. An error that
// says that the step does not fit leaves model and optimizer as they were.
Scalars load(const Context& context, const std::string& step_folder, const ShardedModel& model,
             optim::Optimizer& optimizer, const checkpoint::StateNames& names = {});

// Collective. Loads the weights alone, to evaluate or to train anew: the optimizer's files are not
// read. `source` is a step folder, a plain Hugging Face folder (model.safetensors, or numbered
// files with an index) or one .safetensors file; the last two have no scalars.
Scalars load(const Context& context, const std::string& source, const ShardedModel& model,
             const checkpoint::StateNames& names = {});

// Options of a partial load. Parameters that are not loaded keep their values, and in the optimizer
// their state and step counts.
struct LoadOptions {
  // False: tensors that only one side has are listed in the result and are not an error. Other
  // shapes remain an error, and so does a load that would load nothing.
  bool strict = true;
  // Maps a parameter's name to its name in the checkpoint; an empty name: it is not loaded. This
  // function and the filters must return the same on all ranks: Error(configuration) where they do
  // not.
  checkpoint::StateNames names = {};
  // Filters by the parameters' names in the checkpoint, for weights and for optimizer state.
  // Parameters that a filter excludes are ignored on both sides. With a filter of the optimizer, or
  // without `strict`, the optimizer's groups may differ from those of the run that saved.
  checkpoint::NameFilter model = {};
  checkpoint::NameFilter optimizer = {};
  // The end of the message about a checkpoint that does not fit.
  std::string way_out =
      "make the model as it was saved, or load a part: ts::LoadOptions has strict = false and "
      "filters by name";
};
struct LoadResult {
  Scalars scalars;
  // A strict load lists only the optimizer state of frozen parameters that the step does not have.
  checkpoint::Mismatch model, optimizer;
};
LoadResult load(const Context& context, const std::string& step_folder, const ShardedModel& model,
                optim::Optimizer& optimizer, const LoadOptions& options);
LoadResult load(const Context& context, const std::string& source, const ShardedModel& model,
                const LoadOptions& options);

// Collective. The newest intact step of a folder: checkpoint::find_latest.
std::optional<checkpoint::FoundCheckpoint> latest(const Context& context, const std::string& folder,
                                                  const checkpoint::CheckpointQuery& search = {});

struct Loaded {
  checkpoint::FoundCheckpoint found;  // `fit` has the mismatches of a load that was not strict
  Scalars scalars;
};
// Collective. latest() and load() in one, which reads every byte once and skips damaged steps. None
// if the folder has no step.
std::optional<Loaded> load_latest(const Context& context, const std::string& folder,
                                  const ShardedModel& model, optim::Optimizer& optimizer,
                                  const checkpoint::CheckpointQuery& search = {},
                                  const checkpoint::StateNames& names = {});

std::optional<Loaded> load_latest(const Context& context, const std::string& folder,
                                  const ShardedModel& model, optim::Optimizer& optimizer,
                                  const LoadOptions& options,
                                  const checkpoint::CheckpointQuery& search = {});

}  // namespace tessera
