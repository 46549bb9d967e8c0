// Builds logical tensors from shards.
#include "checkpoint/sharded_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/xxh3.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/load_pieces.h"
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

constexpr const char* step_counts_key = "optimizer_step_counts";

// The parameter's name in a checkpoint; empty: the checkpoint does not contain it.
std::string name_in_state(const StateNames& names, const std::string& name, const Tensor& local) {
  return names ? names(name, local.requires_grad()) : name;
}

constexpr const char* groups_key = "optimizer_groups";

nlohmann::json describe_groups(const optim::Optimizer& optimizer) {
  nlohmann::json list = nlohmann::json::array();
  for (const optim::ParameterGroup& group : optimizer.groups()) {
    nlohmann::json one{{"pattern", group.pattern}, {"lr_scale", group.lr_scale}};
    if (group.weight_decay) one["weight_decay"] = *group.weight_decay;
    list.push_back(std::move(one));
  }
  return list;
}

// A group's rate may change, as train.lr may.
nlohmann::json without_rates(nlohmann::json groups) {
  for (nlohmann::json& group : groups) {
    if (group.is_object()) group.erase("lr_scale");
  }
  return groups;
}

// A parameter's moments come from the settings of its group, and fit no others.
void check_groups(const nlohmann::json& values, const optim::Optimizer& optimizer) {
  const auto found = values.find(groups_key);
  const nlohmann::json saved = found == values.end() ? nlohmann::json::array() : *found;
  const nlohmann::json own = describe_groups(optimizer);
  TESSERA_CHECK(without_rates(saved) == without_rates(own), ErrorCode::configuration,
                "the run there has the parameter groups {}, this one {}; go on with the same, or "
                "begin anew from its weights",
                saved.dump(), own.dump());
}

bool compares_groups(const LoadOptions& options) {
  return options.strict && !options.optimizer;
}

// The places that the model's parameters have in the optimizer, which may be without some of them.
std::vector<std::optional<std::size_t>> places_in(const optim::Optimizer& optimizer,
                                                  const std::vector<ShardedParameter>& parameters) {
  std::map<const void*, std::size_t> place_of;
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    place_of[optimizer.parameters()[i].tensor.impl().get()] = i;
  }
  std::vector<std::optional<std::size_t>> places;
  for (const ShardedParameter& parameter : parameters) {
    const auto found = place_of.find(parameter.local.impl().get());
    places.emplace_back();
    if (found == place_of.end()) continue;
    places.back() = found->second;
    place_of.erase(found);
  }
  TESSERA_REQUIRE(
      place_of.empty(),
      "the optimizer has {}, which is not a parameter of this ShardedModel; make it from the "
      "parameters() of this one, after fully_shard(). An optimizer of two models cannot be saved "
      "or loaded: give each its own, or shard one module that has both as children",
      optimizer.parameters()[place_of.begin()->second].name);
  return places;
}

using Names = std::unordered_set<std::string>;

// Whether the checkpoint has the state of the parameter that it calls `saved`: all of it, or none.
bool has_state(const std::string& saved, const std::vector<std::string>& state_names,
               const LoadOptions& options, const Names& missing_tensors) {
  if (options.optimizer && !options.optimizer(saved)) return false;
  std::string missing, present;
  for (const std::string& name : state_names) {
    const std::string tensor = saved + "." + name;
    (missing_tensors.contains(tensor) ? missing : present) = tensor;
  }
  if (!missing.empty() && !present.empty()) {
    throw Misfit(
        fmt::format("it has the optimizer's tensor '{}' and not '{}'; another optimizer wrote it, "
                    "load the model without the optimizer",
                    present, missing));
  }
  return missing.empty();
}

// How many steps the optimizer's parameters will have seen after a load. Throws when the optimizer
// cannot go on from the step; nothing has been filled then.
std::vector<std::int64_t> step_counts_after(const Scalars& scalars, const Fit& fit,
                                            const ShardedModel& model,
                                            const optim::Optimizer& optimizer,
                                            const LoadOptions& options) {
  const nlohmann::json& values = json_of(scalars);
  if (compares_groups(options)) check_groups(values, optimizer);
  const auto counts = values.find(step_counts_key);
  if (counts == values.end() || !counts->is_object()) {
    throw Misfit(fmt::format(
        "the manifest's scalars have no {}; the checkpoint was not written by tessera::save",
        step_counts_key));
  }
  const Names missing(fit.optimizer.missing.begin(), fit.optimizer.missing.end());
  const std::vector<ShardedParameter> parameters = model.sharded_parameters();
  const auto places = places_in(optimizer, parameters);
  std::vector<std::int64_t> steps = optimizer.step_counts();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!places[i] || !parameters[i].trainable) continue;
    const Tensor& local = parameters[i].local;
    const std::string saved = name_in_state(options.names, parameters[i].name, local);
    const std::vector<std::string> state_names = optimizer.state_names_of(*places[i]);
    if (saved.empty() || !has_state(saved, state_names, options, missing)) continue;
    // Older steps have counts under the names that parameters had in the program that saved.
    const auto count =
        counts->contains(saved) ? counts->find(saved) : counts->find(parameters[i].name);
    // An optimizer without state shows a new parameter only by its missing step count.
    const bool may_lack = !options.strict || !local.requires_grad();
    if (count == counts->end() && may_lack && state_names.empty()) continue;
    if (count == counts->end() || !count->is_number_integer())
      throw Misfit(fmt::format("there is no optimizer step count for {}", saved));
    steps[*places[i]] = count->get<std::int64_t>();
  }
  return steps;
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

State state_of(const ShardedModel& model, optim::Optimizer* optimizer, Direction direction,
               const StateNames& names) {
  State state;
  if (direction == Direction::save) model.require_reduced("a save");
  const std::vector<ShardedParameter> parameters = model.sharded_parameters();
  for (const ShardedParameter& parameter : parameters) {
    const std::string name = name_in_state(names, parameter.name, parameter.local);
    if (name.empty()) continue;
    if (direction == Direction::load) parameter.local.storage()->will_write();
    state.model.push_back(logical(name, parameter, parameter.local, direction));
  }
  for (const ShardedParameter& buffer : model.sharded_buffers()) {
    const std::string name = name_in_state(names, buffer.name, buffer.local);
    if (!name.empty()) state.model.push_back(logical(name, buffer, buffer.local, direction));
    if (!name.empty() && direction == Direction::load) buffer.local.count_write();
  }
  if (optimizer == nullptr) return state;
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
    for (const std::string& name : optimizer->state_names_of(*places[i])) {
      state.optimizer.push_back(logical(saved + "." + name, parameters[i],
                                        optimizer->state(*places[i], name), direction));
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
  nlohmann::json& counts = checkpoint::json_of(state.scalars)[checkpoint::step_counts_key];
  counts = nlohmann::json::object();
  if (!optimizer.groups().empty()) {
    checkpoint::json_of(state.scalars)[checkpoint::groups_key] =
        checkpoint::describe_groups(optimizer);
  }
  const auto steps = optimizer.step_counts();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const nn::NamedParameter& parameter = optimizer.parameters()[i];
    const std::string name =
        checkpoint::name_in_state(options.names, parameter.name, parameter.tensor);
    if (!name.empty()) counts[name] = steps[i];
  }
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
  std::vector<std::int64_t> steps;
  selection.check = [&](const Scalars& scalars, const checkpoint::Fit& fit) {
    steps = checkpoint::step_counts_after(scalars, fit, model, optimizer, options);
  };
  checkpoint::LoadedPieces loaded = checkpoint::load_together(
      context.communicator(), step_folder, state, checkpoint::LoadParts::everything, selection);
  optimizer.set_step_counts(std::move(steps));
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
  std::vector<std::int64_t> steps;
  selection.check = [&](const Scalars& scalars, const checkpoint::Fit& fit) {
    steps = checkpoint::step_counts_after(scalars, fit, model, optimizer, options);
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
  optimizer.set_step_counts(std::move(steps));
  return Loaded{std::move(*found), state->scalars};
}

std::optional<Loaded> load_latest(const Context& context, const std::string& folder,
                                  const ShardedModel& model, optim::Optimizer& optimizer,
                                  const checkpoint::CheckpointQuery& search,
                                  const checkpoint::StateNames& names) {
  return load_latest(context, folder, model, optimizer, LoadOptions{.names = names}, search);
}

}  // namespace tessera
