// Between a sharded model and its checkpoint: ts::save, ts::load, ts::latest.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "engine/optim/optimizer.h"
#include "sharding/fully_shard.h"

namespace tessera::checkpoint {

// The logical tensors of a model and, unless null, of its optimizer, with the pieces that this rank
// writes (every element once over all ranks) or reads (all that it holds). Pieces point into the
// model's and optimizer's memory or, of what is offloaded, into its files.
enum class Direction : std::uint8_t { save, load };
State state_of(const ShardedModel& model, optim::Optimizer* optimizer, Direction direction,
               const StateNames& names = {});

}  // namespace tessera::checkpoint

namespace tessera {

// options.step, or the most steps that a parameter of the optimizer has seen.
std::int64_t step_of_save(const optim::Optimizer& optimizer, const SaveOptions& options);

// The state of a save with these options, its scalars included.
checkpoint::State state_to_save(const ShardedModel& model, optim::Optimizer& optimizer,
                                const SaveOptions& options);

// Collective. Writes folder/step-N. What is returned says where, which run it belongs to (give its
// `line` to the next save's options), and what went wrong without costing the step.
checkpoint::Saved save(const Context& context, const std::string& folder, const ShardedModel& model,
                       optim::Optimizer& optimizer, const SaveOptions& options = {});

// Collective. Fills model and optimizer from a step folder written by any world size, strategy and
// type; returns its scalars. A parameter that is frozen after fully_shard() and was trained before
// keeps its optimizer state over a save and a load, on whichever side it is frozen. An error that
// says that the step does not fit leaves model and optimizer as they were.
Scalars load(const Context& context, const std::string& step_folder, const ShardedModel& model,
             optim::Optimizer& optimizer, const checkpoint::StateNames& names = {});

// Collective. The weights alone, to evaluate or to train anew: the optimizer's files are not read.
// `source` is a step folder, a plain Hugging Face folder (model.safetensors, or numbered files with
// an index) or one .safetensors file; the last two have no scalars.
Scalars load(const Context& context, const std::string& source, const ShardedModel& model,
             const checkpoint::StateNames& names = {});

// A load of a part. What is not loaded keeps the value that it has: a new head its first values, a
// parameter of the optimizer its state and its count of steps.
struct LoadOptions {
  // False: tensors that one side alone has are listed in the result instead of being an error.
  // Other shapes stay one, and so does a load that would fill nothing.
  bool strict = true;
  // What a parameter is called in the checkpoint; an empty name: it is not loaded. This function
  // and the filters must return the same on all ranks: Error(configuration) where they do not.
  checkpoint::StateNames names = {};
  // By the parameters' names in the checkpoint: whose weights, and whose optimizer's state, the
  // load is about. All others on either side are passed over. With a filter of the optimizer, or
  // without `strict`, the optimizer's groups may be others than those of the run that saved.
  checkpoint::NameFilter model = {};
  checkpoint::NameFilter optimizer = {};
};
struct LoadResult {
  Scalars scalars;
  // Of a strict load, only the optimizer state of frozen parameters that the step has none of.
  checkpoint::Mismatch model, optimizer;
};
LoadResult load(const Context& context, const std::string& step_folder, const ShardedModel& model,
                optim::Optimizer& optimizer, const LoadOptions& options);
LoadResult load(const Context& context, const std::string& source, const ShardedModel& model,
                const LoadOptions& options);

// Collective. The newest step of a folder that is whole: checkpoint::find_latest.
std::optional<checkpoint::Found> latest(const Context& context, const std::string& folder,
                                        const checkpoint::Search& search = {});

struct Loaded {
  checkpoint::Found found;  // `fit` says what did not match, where the load was not strict
  Scalars scalars;
};
// Collective. latest() and load() in one, which reads every byte once: what turns out to be damaged
// is passed over. None when the folder has no step.
std::optional<Loaded> load_latest(const Context& context, const std::string& folder,
                                  const ShardedModel& model, optim::Optimizer& optimizer,
                                  const checkpoint::Search& search = {},
                                  const checkpoint::StateNames& names = {});

std::optional<Loaded> load_latest(const Context& context, const std::string& folder,
                                  const ShardedModel& model, optim::Optimizer& optimizer,
                                  const LoadOptions& options,
                                  const checkpoint::Search& search = {});

}  // namespace tessera
