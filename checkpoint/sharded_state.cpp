// Logical tensors from shards.
#include "checkpoint/sharded_state.h"

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

void take_step_counts(const Scalars& scalars, const std::string& step_folder,
                      optim::Optimizer& optimizer) {
  const nlohmann::json& values = json_of(scalars);
  const auto found = values.find(step_counts_key);
  TESSERA_CHECK(
      found != values.end() && found->is_object(), ErrorCode::checkpoint,
      "{}: the manifest's scalars have no {}; the checkpoint was not written by tessera::save",
      step_folder, step_counts_key);
  std::vector<std::int64_t> steps;
  for (const auto& parameter : optimizer.parameters()) {
    TESSERA_CHECK(found->contains(parameter.name), ErrorCode::checkpoint,
                  "{}: no optimizer step count for {}", step_folder, parameter.name);
    steps.push_back(found->at(parameter.name).get<std::int64_t>());
  }
  optimizer.set_step_counts(std::move(steps));
}

}  // namespace

State state_of(const ShardedModel& model, optim::Optimizer* optimizer, Direction direction) {
  State state;
  const std::vector<ShardedParameter> parameters = model.sharded_parameters();
  for (const ShardedParameter& parameter : parameters) {
    if (direction == Direction::load) parameter.local.storage()->will_write();
    state.model.push_back(logical(parameter.name, parameter, parameter.local, direction));
  }
  if (optimizer == nullptr) return state;
  TESSERA_REQUIRE(optimizer->parameters().size() == parameters.size(),
                  "the optimizer has {} parameters, the model {}; make it from model.parameters()",
                  optimizer->parameters().size(), parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    TESSERA_REQUIRE(
        optimizer->parameters()[i].name == parameters[i].name,
        "the optimizer's parameter {} is {}, the model's {}; make it from model.parameters()", i,
        optimizer->parameters()[i].name, parameters[i].name);
    if (!parameters[i].local.requires_grad()) continue;
    for (const std::string& name : optimizer->state_names()) {
      state.optimizer.push_back(logical(parameters[i].name + "." + name, parameters[i],
                                        optimizer->state(i, name), direction));
    }
  }
  return state;
}

}  // namespace tessera::checkpoint

namespace tessera {

using checkpoint::Direction;

checkpoint::State state_to_save(const ShardedModel& model, optim::Optimizer& optimizer,
                                const SaveOptions& options) {
  checkpoint::State state = checkpoint::state_of(model, &optimizer, Direction::save);
  state.scalars = options.scalars;
  nlohmann::json& counts = checkpoint::json_of(state.scalars)[checkpoint::step_counts_key];
  counts = nlohmann::json::object();
  const auto steps = optimizer.step_counts();
  for (std::size_t i = 0; i < steps.size(); ++i) counts[optimizer.parameters()[i].name] = steps[i];
  return state;
}

checkpoint::Saved save(const Context& context, const std::string& folder, const ShardedModel& model,
                       optim::Optimizer& optimizer, const SaveOptions& options) {
  return checkpoint::save(context.communicator(), folder, options.step,
                          state_to_save(model, optimizer, options), options);
}

Scalars load(const Context& context, const std::string& step_folder, const ShardedModel& model,
             optim::Optimizer& optimizer) {
  checkpoint::State state = checkpoint::state_of(model, &optimizer, Direction::load);
  checkpoint::load(context.communicator(), step_folder, state);
  checkpoint::take_step_counts(state.scalars, step_folder, optimizer);
  return state.scalars;
}

Scalars load(const Context& context, const std::string& step_folder, const ShardedModel& model) {
  checkpoint::State state = checkpoint::state_of(model, nullptr, Direction::load);
  checkpoint::load(context.communicator(), step_folder, state, checkpoint::LoadParts::model_only);
  return state.scalars;
}

std::optional<checkpoint::Found> latest(const Context& context, const std::string& folder,
                                        const checkpoint::Search& search) {
  return checkpoint::find_latest(context.communicator(), folder, search);
}

std::optional<Loaded> load_latest(const Context& context, const std::string& folder,
                                  const ShardedModel& model, optim::Optimizer& optimizer,
                                  const checkpoint::Search& search) {
  std::optional<checkpoint::State> state;
  auto found = checkpoint::load_latest(
      context.communicator(), folder,
      [&]() -> checkpoint::State& {
        return state.emplace(checkpoint::state_of(model, &optimizer, Direction::load));
      },
      checkpoint::LoadParts::everything, search);
  if (!found) return std::nullopt;
  checkpoint::take_step_counts(state->scalars, found->path, optimizer);
  return Loaded{std::move(*found), state->scalars};
}

}  // namespace tessera
