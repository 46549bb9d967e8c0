// The options of a Trainer, made of those of its parts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/save/model_files.h"
#include "checkpoint/sharded_state.h"
#include "engine/optim/choice.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule.h"
#include "sharding/context/loss_scaler.h"
#include "sharding/fully_shard.h"
#include "tasks/batch_order.h"
#include "trainer/events.h"
#include "trainer/pruning/options.h"
#include "trainer/rank_shares.h"
#include "trainer/spikes.h"

namespace tessera {

// Weights that a new run begins with.
struct InitialWeights {
  // Fills the model's tensors, on each rank.
  std::function<void(std::vector<checkpoint::LogicalTensor>& tensors)> load = {};
  // Called behind `load`, also if that is empty: for values that follow from the weights, as DoRA's
  // first magnitudes (models/load/magnitudes.h). Collective.
  std::function<void(ShardedModel& model)> complete = {};
  std::vector<events::WeightsLoaded> from = {};  // where they are from, for the run's events
  // Steps do not have all of these weights (an adapter's step has no base), so that a run that goes
  // on from a step loads them first.
  bool under_steps = false;
};

// Files of a saved folder that are there before the run. Rank 0 reads them before the first step.
struct FilesToCopy {
  std::string option;  // that names them, for messages
  std::function<checkpoint::ModelFiles()> read;
};

// The program's loop calls Trainer::save(): `every` says how often it will, for Trainer::saves()
// and prepare_folder(). With 0 the run expects no saves: prepare_folder() does not look at `dir`,
// and a save() is written at once, also with `async`.
struct CheckpointOptions {
  std::string dir = {};            // empty: no checkpoints
  std::int64_t every = 1000;       // steps between saves
  std::string resume = "auto";     // the newest step of `dir`, never, or a path
  bool async = false;              // training goes on while the copy is written
  std::string export_folder = {};  // for export_weights(); empty: it does nothing
  // Options of each save. The run sets the step, the line and the score (give none of them), and
  // adds scalars and files.
  SaveOptions save = {};
  std::vector<FilesToCopy> files = {};
  std::set<std::string> left_out = {};  // files that steps do not have
};

// A step that a run can go on from.
struct CheckedStep {
  // If it lacks tensors that the run has, the names that it has: the others get the initial
  // weights.
  std::optional<checkpoint::StateNames> names = {};
  std::optional<events::SettingsChanged> changed = {};
};

// Checks of a step that a run is to go on from.
struct StepChecks {
  // Collective. Refuses a step, or the newest step of a folder, before it is loaded.
  std::function<CheckedStep(const ShardedModel&, const std::string& path)> before_load = {};
  std::function<void(const Scalars& scalars, const std::string& folder)> after_load = {};
};

// Signals that a rank has got so far.
struct RunSignals {
  int stop = 0;   // the number of a signal to stop
  int saves = 0;  // requests to save
};

// How messages name options, and the places where they were given. A recipe's are its keys. The
// views are of literals.
struct OptionNames {
  std::string source = "TrainerOptions";
  std::map<std::string, std::string> given = {};  // places by name, if they are not the source
  std::string_view learning_rate = {};  // empty: schedule.peak, or optimizer.lr without a schedule
  std::string_view initial_weights = "initial_weights";
  std::string_view export_folder = "checkpoint.export_folder";
  std::string_view rank_weights = "rank_weights";
  std::string_view context_parallel = "context_parallel";
  std::string_view deal_by_cost = "deal_by_cost";

  [[nodiscard]] const std::string& place(const std::string& option) const {
    const auto found = given.find(option);
    return found == given.end() ? source : found->second;
  }
};

// Each rank has the same options. The constructor checks values and compares the ranks.
struct TrainerOptions {
  std::int64_t steps = 1000;  // of the whole run, to foresee the room that its checkpoints need
  // Samples of a rank's micro-batch, the same on every rank; with rank_weights their mean.
  std::int64_t batch_size = 1;
  std::int64_t gradient_accumulation_steps = 1;  // micro-batches of a step
  StepRamp accumulation_ramp = {};               // and those from later steps on
  bool sync_each_batch = true;  // false: gradients are reduced after the last micro-batch only
  double max_grad_norm = 1.0;   // 0: no clipping
  ShardingOptions sharding = {};
  LossScaleOptions loss_scale = {};  // for a param_dtype of float16
  SpikeOptions spikes = {};
  std::optional<PruningOptions> pruning = {};
  optim::OptimizerChoice optimizer = optim::AdamWOptions{};
  std::optional<optim::Schedule> schedule = {};  // unset: the optimizer's rate
  tasks::BatchOrderOptions data = {};            // without `samples`, which the task has
  CheckpointOptions checkpoint = {};
  InitialWeights initial_weights = {};
  // So many consecutive ranks hold each sequence together (ContextParallel); it divides the world.
  // They have the samples of one rank, and batch_size is that of all of them. 1: each rank has
  // whole sequences. Excludes rank_weights. Not every task can (Task::share_sequences()).
  int context_parallel = 1;
  // Samples of unequal lengths: each micro-batch is divided such that all ranks compute about as
  // long, instead of equally many samples. No rank has more places, padding included, than
  // batch_size of the longest samples. The batch, its loss and gradient stay the same but for
  // rounding and dropout. For tasks with Task::most_places(); excludes rank_weights.
  bool deal_by_cost = false;
  // Ranks of unequal speed: how they divide the samples of each micro-batch, batch_size times the
  // ranks. Which samples these are does not change, nor do loss and gradient but for rounding.
  RankWeightOptions rank_weights = {};
  StepChecks checks = {};
  std::function<RunSignals()> signals = {};  // asked at each step
  OptionNames names = {};
  bool are_checked = false;  // the source has rules of its own for values, as recipes have
};

}  // namespace tessera
