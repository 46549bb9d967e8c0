// Builds logical tensors from shards.
#include "checkpoint/sharded_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/xxh3.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/load_pieces.h"
#include "checkpoint/optimizer_counts.h"
#include "checkpoint/state/scalars_json.h"
#include "sharding/units/equal_values.h"

namespace tessera::checkpoint {
namespace {

LogicalTensor logical(const std::string& name, const ShardedParameter& parameter,
                      const Tensor& local, Direction direction) {
  LogicalTensor tensor;
  tensor.name = name;
  tensor.dtype = local.dtype();
  tensor.shape.assign(parameter.shape.sizes().begin(), parameter.shape.sizes().end());
  const std::int64_t begin = direction == Direction::save ? parameter.save_first : 0;
  const std::int64_t count = direction == Direction::save ? parameter.save_count : local.elements();
  if (count == 0) return tensor;
  const std::size_t skipped = static_cast<std::size_t>(begin) * size_of(local.dtype());
  Piece piece{parameter.first + begin, count, nullptr, local.device()};
  if (const FilePlace& place = local.storage()->file()) {
    piece.file = {place.file, place.offset + local.impl()->offset + skipped};
  } else {
    piece.data = local.raw_data() + skipped;
  }
  tensor.pieces.push_back(piece);
  return tensor;
}

// A state with one element for each block of the parameter's: the blocks that begin in its part.
LogicalTensor logical_blocks(const std::string& name, const ShardedParameter& parameter,
                             const Tensor& local, const optim::StateFormat& format,
                             Direction direction) {
  ShardedParameter blocks = parameter;
  blocks.shape = Shape{format.elements_for(parameter.shape.elements())};
  blocks.first = format.elements_for(parameter.first);
  const auto up_to = [&](std::int64_t element) {
    return format.elements_for(parameter.first + element) - blocks.first;
  };
  blocks.save_first = up_to(parameter.save_first);
  blocks.save_count = up_to(parameter.save_first + parameter.save_count) - blocks.save_first;
  return logical(name, blocks, local, direction);
}

// A state that every rank has whole: the rank that writes the parameter's first element writes it.
LogicalTensor logical_whole(const std::string& name, const ShardedParameter& parameter,
                            const Tensor& local, Direction direction) {
  ShardedParameter whole = parameter;
  whole.shape = local.shape();
  whole.first = whole.save_first = whole.save_count = 0;
  const bool writes = parameter.save_count > 0 && parameter.first + parameter.save_first == 0;
  if (writes) whole.save_count = local.elements();
  return logical(name, whole, local, direction);
}

LogicalTensor logical_state(const std::string& name, const ShardedParameter& parameter,
                            const Tensor& local, const optim::StateFormat& format,
                            Direction direction) {
  if (format.whole) return logical_whole(name, parameter, local, direction);
  if (format.block > 1) return logical_blocks(name, parameter, local, format, direction);
  return logical(name, parameter, local, direction);
}

// Ranks that take different tensors would go on with a mix of two models.
void compare_selections(const Context& context, const ShardedModel& model,
                        const LoadOptions& options) {
  std::vector<ShardedParameter> parameters = model.sharded_parameters();
  const std::vector<ShardedParameter> buffers = model.sharded_buffers();
  parameters.insert(parameters.end(), buffers.begin(), buffers.end());
  std::vector<std::uint64_t> answers;
  for (const ShardedParameter& parameter : parameters) {
    const std::string name = name_in_state(options.names, parameter.name, parameter.local);
    const auto takes = [&](const NameFilter& filter) {
      return !name.empty() && (!filter || filter(name));
    };
    const std::string answer =
        fmt::format("{} {} {}", name, takes(options.model), takes(options.optimizer));
    answers.push_back(XXH3_64bits(answer.data(), answer.size()));
  }
  const std::optional<ValueDifference> difference =
      find_difference(context.communicator(), answers);
  if (!difference) return;
  fail(ErrorCode::configuration,
       "a load: ranks 0 and {} have different names or filters for {}; the functions of "
       "ts::LoadOptions must return the same on all ranks",
       difference->rank, parameters.at(difference->index).name);
}

Selection selection_of(const LoadOptions& options) {
  return {options.strict, options.model, options.optimizer, options.way_out};
}

}  // namespace

std::vector<LogicalTensor> model_of(const ShardedModel& model, optim::Optimizer* optimizer,
                                    Direction direction, const StateNames& names) {
  std::vector<LogicalTensor> tensors;
  if (direction == Direction::save) model.require_reduced("a save");
  const std::vector<ShardedParameter> parameters = model.sharded_parameters();
  std::vector<std::optional<std::size_t>> places(parameters.size());
  if (optimizer != nullptr) places = places_in(*optimizer, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& local = parameters[i].local;
    const std::string name = name_in_state(names, parameters[i].name, local);
    if (name.empty()) continue;
    if (direction == Direction::load) {
      local.storage()->will_write();
      local.count_write();
    }
    const bool averaged = direction == Direction::save && places[i];
    tensors.push_back(
        logical(name, parameters[i], averaged ? optimizer->weights(*places[i]) : local, direction));
  }
  for (const ShardedParameter& buffer : model.sharded_buffers()) {
    const std::string name = name_in_state(names, buffer.name, buffer.local);
    if (!name.empty()) tensors.push_back(logical(name, buffer, buffer.local, direction));
    if (!name.empty() && direction == Direction::load) buffer.local.count_write();
  }
  return tensors;
}

State state_of(const ShardedModel& model, optim::Optimizer* optimizer, Direction direction,
               const StateNames& names) {
  State state;
  state.model = model_of(model, optimizer, direction, names);
  if (optimizer == nullptr) return state;
  const std::vector<ShardedParameter> parameters = model.sharded_parameters();
  const auto places = places_in(*optimizer, parameters);
  const std::vector<std::int64_t> steps = optimizer->step_counts();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!places[i]) continue;
    // The moments of a parameter that is frozen for a while wait until it is trained again. One
    // that was never trained has none to save.
    const bool frozen = !parameters[i].local.requires_grad();
    const bool has_moments =
        direction == Direction::save ? steps[*places[i]] > 0 : parameters[i].trainable;
    if (frozen && !has_moments) continue;
    const std::string saved = name_in_state(names, parameters[i].name, parameters[i].local);
    if (saved.empty()) continue;
    const std::vector<std::string> state_names = optimizer->state_names_of(*places[i]);
    for (std::size_t which = 0; which < state_names.size(); ++which) {
      if (which == optimizer->average_state()) continue;
      const std::string name = saved + "." + state_names[which];
      const Tensor local = optimizer->state(*places[i], state_names[which]);
      const optim::StateFormat format = optimizer->state_format(*places[i], which);
      state.optimizer.push_back(logical_state(name, parameters[i], local, format, direction));
      state.optimizer.back().optional = frozen;
    }
  }
  return state;
}

}  // namespace tessera::checkpoint

namespace tessera {

using checkpoint::Direction;

std::int64_t step_of_save(const optim::Optimizer& optimizer, const SaveOptions& options) {
  if (options.step) return *options.step;
  std::int64_t most = 0;
  for (const std::int64_t steps : optimizer.step_counts()) most = std::max(most, steps);
  return most;
}

checkpoint::State state_to_save(const ShardedModel& model, optim::Optimizer& optimizer,
                                const SaveOptions& options) {
  checkpoint::State state = checkpoint::state_of(model, &optimizer, Direction::save, options.names);
  state.scalars = options.scalars;
  checkpoint::describe_counts(optimizer, options.names, state.scalars);
  return state;
}

checkpoint::Saved save(const Context& context, const std::string& folder, const ShardedModel& model,
                       optim::Optimizer& optimizer, const SaveOptions& options) {
  model.compare_ignored_parameters();
  return checkpoint::save(context.communicator(), folder, step_of_save(optimizer, options),
                          state_to_save(model, optimizer, options), options);
}

LoadResult load(const Context& context, const std::string& step_folder, const ShardedModel& model,
                optim::Optimizer& optimizer, const LoadOptions& options) {
  checkpoint::compare_selections(context, model, options);
  checkpoint::State state = checkpoint::state_of(model, &optimizer, Direction::load, options.names);
  checkpoint::Selection selection = checkpoint::selection_of(options);
  checkpoint::OptimizerCounts counts;
  selection.check = [&](const Scalars& scalars, const checkpoint::Fit& fit) {
    counts = checkpoint::counts_after(scalars, fit, model, optimizer, options);
  };
  checkpoint::LoadedPieces loaded = checkpoint::load_together(
      context.communicator(), step_folder, state, checkpoint::LoadParts::everything, selection);
  std::move(counts).give_to(optimizer);
  return {std::move(loaded.scalars), std::move(loaded.fit.model), std::move(loaded.fit.optimizer)};
}

LoadResult load(const Context& context, const std::string& source, const ShardedModel& model,
                const LoadOptions& options) {
  checkpoint::compare_selections(context, model, options);
  checkpoint::State state = checkpoint::state_of(model, nullptr, Direction::load, options.names);
  checkpoint::LoadedPieces loaded = checkpoint::load_together(context.communicator(), source, state,
                                                              checkpoint::LoadParts::model_only,
                                                              checkpoint::selection_of(options));
  return {std::move(loaded.scalars), std::move(loaded.fit.model), {}};
}

Scalars load(const Context& context, const std::string& step_folder, const ShardedModel& model,
             optim::Optimizer& optimizer, const checkpoint::StateNames& names) {
  return load(context, step_folder, model, optimizer, LoadOptions{.names = names}).scalars;
}

Scalars load(const Context& context, const std::string& source, const ShardedModel& model,
             const checkpoint::StateNames& names) {
  return load(context, source, model, LoadOptions{.names = names}).scalars;
}

std::optional<checkpoint::FoundCheckpoint> latest(const Context& context, const std::string& folder,
                                                  const checkpoint::CheckpointQuery& search) {
  return checkpoint::find_latest(context.communicator(), folder, search);
}

std::optional<Loaded> load_latest(const Context& context, const std::string& folder,
                                  const ShardedModel& model, optim::Optimizer& optimizer,
                                  const LoadOptions& options,
                                  const checkpoint::CheckpointQuery& search) {
  std::optional<checkpoint::State> state;
  checkpoint::Selection selection = checkpoint::selection_of(options);
  checkpoint::OptimizerCounts counts;
  selection.check = [&](const Scalars& scalars, const checkpoint::Fit& fit) {
    counts = checkpoint::counts_after(scalars, fit, model, optimizer, options);
  };
  auto found = checkpoint::load_latest(
      context.communicator(), folder,
      [&]() -> checkpoint::State& {
        checkpoint::compare_selections(context, model, options);
        return state.emplace(
            checkpoint::state_of(model, &optimizer, Direction::load, options.names));
      },
      checkpoint::LoadParts::everything, search, selection);
  if (!found) return std::nullopt;
  std::move(counts).give_to(optimizer);
  return Loaded{std::move(*found), state->scalars};
}

std::optional<Loaded> load_latest(const Context& context, const std::string& folder,
                                  const ShardedModel& model, optim::Optimizer& optimizer,
                                  const checkpoint::CheckpointQuery& search,
                                  const checkpoint::StateNames& names) {
  return load_latest(context, folder, model, optimizer, LoadOptions{.names = names}, search);
}

}  // namespace tessera
