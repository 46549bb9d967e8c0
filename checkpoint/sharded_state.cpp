// Logical tensors from shards.
#include "checkpoint/sharded_state.h"

#include <algorithm>

#include "checkpoint/scalars_json.h"
#include "kernels/base/error.h"

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
    piece.data = local.data() + skipped;
  }
  tensor.pieces.push_back(piece);
  return tensor;
}

constexpr const char* step_counts_key = "optimizer_step_counts";

// The parameter's name in a checkpoint; empty: it has none there.
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

// Its rate may change, as train.lr may.
nlohmann::json without_rates(nlohmann::json groups) {
  for (nlohmann::json& group : groups) {
    if (group.is_object()) group.erase("lr_scale");
  }
  return groups;
}

// What a group's parameters went through is not what another group's would have.
void check_groups(const nlohmann::json& values, const std::string& step_folder,
                  const optim::Optimizer& optimizer) {
  const auto found = values.find(groups_key);
  const nlohmann::json saved = found == values.end() ? nlohmann::json::array() : *found;
  const nlohmann::json own = describe_groups(optimizer);
  TESSERA_CHECK(
      without_rates(saved) == without_rates(own), ErrorCode::configuration,
      "{}: the run there has the parameter groups {}, this one {}; go on with the same, or "
      "begin anew from its weights",
      step_folder, saved.dump(), own.dump());
}

void take_step_counts(const Scalars& scalars, const std::string& step_folder,
                      optim::Optimizer& optimizer, const StateNames& names) {
  const nlohmann::json& values = json_of(scalars);
  check_groups(values, step_folder, optimizer);
  const auto found = values.find(step_counts_key);
  TESSERA_CHECK(
      found != values.end() && found->is_object(), ErrorCode::checkpoint,
      "{}: the manifest's scalars have no {}; the checkpoint was not written by tessera::save",
      step_folder, step_counts_key);
  std::vector<std::int64_t> steps;
  for (const auto& parameter : optimizer.parameters()) {
    if (name_in_state(names, parameter.name, parameter.tensor).empty()) {
      steps.push_back(0);
      continue;
    }
    TESSERA_CHECK(found->contains(parameter.name), ErrorCode::checkpoint,
                  "{}: no optimizer step count for {}", step_folder, parameter.name);
    steps.push_back(found->at(parameter.name).get<std::int64_t>());
  }
  optimizer.set_step_counts(std::move(steps));
}

}  // namespace

State state_of(const ShardedModel& model, optim::Optimizer* optimizer, Direction direction,
               const StateNames& names) {
  State state;
  const std::vector<ShardedParameter> parameters = model.sharded_parameters();
  for (const ShardedParameter& parameter : parameters) {
    const std::string name = name_in_state(names, parameter.name, parameter.local);
    if (name.empty()) continue;
    if (direction == Direction::load) parameter.local.storage()->will_write();
    state.model.push_back(logical(name, parameter, parameter.local, direction));
  }
  if (optimizer == nullptr) return state;
  // The ignored ones come last, and an optimizer may leave them out.
  const std::size_t trained = optimizer->parameters().size();
  TESSERA_REQUIRE(trained == parameters.size() ||
                      trained == parameters.size() - model.ignored_parameters().size(),
                  "the optimizer has {} parameters, the model {}; make it from model.parameters()",
                  trained, parameters.size());
  for (std::size_t i = 0; i < trained; ++i) {
    TESSERA_REQUIRE(
        optimizer->parameters()[i].name == parameters[i].name,
        "the optimizer's parameter {} is {}, the model's {}; make it from model.parameters()", i,
        optimizer->parameters()[i].name, parameters[i].name);
    if (!parameters[i].local.requires_grad()) continue;
    const std::string saved = name_in_state(names, parameters[i].name, parameters[i].local);
    if (saved.empty()) continue;
    for (const std::string& name : optimizer->state_names()) {
      state.optimizer.push_back(
          logical(saved + "." + name, parameters[i], optimizer->state(i, name), direction));
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
    if (!checkpoint::name_in_state(options.names, parameter.name, parameter.tensor).empty()) {
      counts[parameter.name] = steps[i];
    }
  }
  return state;
}

checkpoint::Saved save(const Context& context, const std::string& folder, const ShardedModel& model,
                       optim::Optimizer& optimizer, const SaveOptions& options) {
  model.compare_ignored_parameters();
  return checkpoint::save(context.communicator(), folder, step_of_save(optimizer, options),
                          state_to_save(model, optimizer, options), options);
}

Scalars load(const Context& context, const std::string& step_folder, const ShardedModel& model,
             optim::Optimizer& optimizer, const checkpoint::StateNames& names) {
  checkpoint::State state = checkpoint::state_of(model, &optimizer, Direction::load, names);
  checkpoint::load(context.communicator(), step_folder, state);
  checkpoint::take_step_counts(state.scalars, step_folder, optimizer, names);
  return state.scalars;
}

Scalars load(const Context& context, const std::string& step_folder, const ShardedModel& model,
             const checkpoint::StateNames& names) {
  checkpoint::State state = checkpoint::state_of(model, nullptr, Direction::load, names);
  checkpoint::load(context.communicator(), step_folder, state, checkpoint::LoadParts::model_only);
  return state.scalars;
}

std::optional<checkpoint::Found> latest(const Context& context, const std::string& folder,
                                        const checkpoint::Search& search) {
  return checkpoint::find_latest(context.communicator(), folder, search);
}

std::optional<Loaded> load_latest(const Context& context, const std::string& folder,
                                  const ShardedModel& model, optim::Optimizer& optimizer,
                                  const checkpoint::Search& search,
                                  const checkpoint::StateNames& names) {
  std::optional<checkpoint::State> state;
  auto found = checkpoint::load_latest(
      context.communicator(), folder,
      [&]() -> checkpoint::State& {
        return state.emplace(checkpoint::state_of(model, &optimizer, Direction::load, names));
      },
      checkpoint::LoadParts::everything, search);
  if (!found) return std::nullopt;
  checkpoint::take_step_counts(state->scalars, found->path, optimizer, names);
  return Loaded{std::move(*found), state->scalars};
}

}  // namespace tessera
