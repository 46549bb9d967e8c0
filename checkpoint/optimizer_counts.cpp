// Step counts, numbers and groups of optimizers as scalars.
#include "checkpoint/optimizer_counts.h"

#include <fmt/format.h>

#include <map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera::checkpoint {
namespace {

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

// The entry of a parameter. Older steps have entries under the names that parameters had in the
// program that saved.
const nlohmann::json* entry_of(const nlohmann::json& entries, const std::string& saved,
                               const std::string& own) {
  const auto found = entries.contains(saved) ? entries.find(saved) : entries.find(own);
  return found == entries.end() ? nullptr : &*found;
}

std::vector<double> numbers_of(const nlohmann::json& values, const std::string& saved,
                               const std::string& own, const optim::Optimizer& optimizer) {
  std::vector<double> numbers;
  for (const std::string& name : optimizer.number_names()) {
    const auto all = values.find(numbers_key);
    const nlohmann::json* entry = nullptr;
    if (all != values.end() && all->is_object() && all->contains(name)) {
      entry = entry_of(all->at(name), saved, own);
    }
    if (entry == nullptr || !entry->is_number()) {
      throw Misfit(fmt::format(
          "there is no {} of {}; another optimizer wrote it, load the model without the optimizer",
          name, saved));
    }
    numbers.push_back(entry->get<double>());
  }
  return numbers;
}

}  // namespace

std::string name_in_state(const StateNames& names, const std::string& name, const Tensor& local) {
  return names ? names(name, local.requires_grad()) : name;
}

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

void describe_counts(const optim::Optimizer& optimizer, const StateNames& names, Scalars& scalars) {
  nlohmann::json& counts = json_of(scalars)[step_counts_key];
  counts = nlohmann::json::object();
  // The program's scalars may be those of a load with another optimizer.
  json_of(scalars).erase(groups_key);
  json_of(scalars).erase(numbers_key);
  if (!optimizer.groups().empty()) {
    json_of(scalars)[groups_key] = describe_groups(optimizer);
  }
  const auto steps = optimizer.step_counts();
  const std::vector<std::string> number_names = optimizer.number_names();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const nn::NamedParameter& parameter = optimizer.parameters()[i];
    const std::string name = name_in_state(names, parameter.name, parameter.tensor);
    if (name.empty()) continue;
    counts[name] = steps[i];
    const std::vector<double>& numbers = optimizer.numbers()[i];
    for (std::size_t which = 0; which < number_names.size(); ++which) {
      json_of(scalars)[numbers_key][number_names[which]][name] =
          numbers.empty() ? 0.0 : numbers[which];
    }
  }
}

void OptimizerCounts::give_to(optim::Optimizer& optimizer) && {
  optimizer.set_step_counts(std::move(steps));
  optimizer.set_numbers(std::move(numbers));
  optimizer.end_load(loaded);
}

OptimizerCounts counts_after(const Scalars& scalars, const Fit& fit, const ShardedModel& model,
                             const optim::Optimizer& optimizer, const LoadOptions& options) {
  const nlohmann::json& values = json_of(scalars);
  if (compares_groups(options)) check_groups(values, optimizer);
  const auto counts = values.find(step_counts_key);
  if (counts == values.end() || !counts->is_object()) {
    throw Misfit(fmt::format(
        "the manifest's scalars have no {}; the checkpoint was not written by tessera::save",
        step_counts_key));
  }
  const Names missing(fit.optimizer.missing.begin(), fit.optimizer.missing.end());
  const Names missing_weights(fit.model.missing.begin(), fit.model.missing.end());
  const std::vector<ShardedParameter> parameters = model.sharded_parameters();
  const auto places = places_in(optimizer, parameters);
  OptimizerCounts after{
      .steps = optimizer.step_counts(), .numbers = optimizer.numbers(), .loaded = {}};
  after.loaded.resize(after.steps.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!places[i] || !parameters[i].trainable) continue;
    const std::size_t place = *places[i];
    const std::string& own = parameters[i].name;
    const Tensor& local = parameters[i].local;
    const std::string saved = name_in_state(options.names, own, local);
    if (saved.empty()) continue;
    after.loaded[place].weights =
        (!options.model || options.model(saved)) && !missing_weights.contains(saved);
    const std::vector<std::string> state_names = optimizer.saved_state_names_of(place);
    if (!has_state(saved, state_names, options, missing)) continue;
    const nlohmann::json* const count = entry_of(*counts, saved, own);
    // An optimizer without state shows a new parameter only by its missing step count.
    const bool may_lack = !options.strict || !local.requires_grad();
    if (count == nullptr && may_lack && state_names.empty()) continue;
    if (count == nullptr || !count->is_number_integer())
      throw Misfit(fmt::format("there is no optimizer step count for {}", saved));
    after.steps[place] = count->get<std::int64_t>();
    after.numbers[place] = numbers_of(values, saved, own, optimizer);
    after.loaded[place].state = true;
    // The average is the weights: with other weights the states would lead anywhere.
    if (optimizer.average_state() && !after.loaded[place].weights) {
      throw Misfit(fmt::format(
          "the optimizer's state of {} goes with its weights, which are an average of the steps: "
          "load both or neither",
          saved));
    }
  }
  return after;
}

}  // namespace tessera::checkpoint
