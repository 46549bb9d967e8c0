// Optimizer state in PyTorch's form.
#include "checkpoint/formats/torch/torch_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/torch/state_names.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera::checkpoint::formats {

namespace {

// The defaults of torch.optim's groups. A group without all of these keys cannot be loaded.
nlohmann::json adamw_defaults() {
  return {{"lr", 1e-3},
          {"betas", {0.9, 0.999}},
          {"eps", 1e-8},
          {"weight_decay", 1e-2},
          {"amsgrad", false},
          {"maximize", false},
          {"foreach", nullptr},
          {"capturable", false},
          {"differentiable", false},
          {"fused", nullptr},
          {"decoupled_weight_decay", true}};
}

nlohmann::json sgd_defaults() {
  return {{"lr", 1e-3},         {"momentum", 0.9},         {"dampening", 0},
          {"weight_decay", 0},  {"nesterov", false},       {"maximize", false},
          {"foreach", nullptr}, {"differentiable", false}, {"fused", nullptr}};
}

// torch has no Lion; these are the keys of its authors' class.
nlohmann::json lion_defaults() {
  return {{"lr", 1e-4}, {"betas", {0.9, 0.99}}, {"weight_decay", 0}};
}

nlohmann::json muon_defaults() {
  return {{"lr", 1e-3},
          {"weight_decay", 0.1},
          {"momentum", 0.95},
          {"nesterov", true},
          {"ns_coefficients", {3.4445, -4.7750, 2.0315}},
          {"eps", 1e-7},
          {"ns_steps", 5},
          {"adjust_lr_fn", nullptr}};
}

// The defaults of the package schedulefree. A checkpoint has the average as the weights, as the
// package's in evaluation mode.
nlohmann::json schedule_free_defaults() {
  return {{"lr", 2.5e-3},
          {"betas", {0.9, 0.999}},
          {"eps", 1e-8},
          {"r", 0.0},
          {"k", 0},
          {"warmup_steps", 0},
          {"train_mode", false},
          {"weight_sum", 0.0},
          {"lr_max", -1.0},
          {"scheduled_lr", 0.0},
          {"weight_lr_power", 2.0},
          {"weight_decay", 0},
          {"foreach", true}};
}

nlohmann::json adafactor_defaults() {
  return {{"lr", 1e-2},          {"beta2_decay", -0.8}, {"eps", {nullptr, 1e-3}}, {"d", 1.0},
          {"weight_decay", 0.0}, {"foreach", nullptr},  {"maximize", false}};
}

// The optimizers whose defaults are known, by the state of a parameter.
enum class OptimizerKind : std::uint8_t { adam, sgd, lion, muon, schedule_free, adafactor, other };

template <class Tensors>
OptimizerKind kind_of(const Tensors& tensors) {
  if (tensors.size() == 2 && tensors.contains("z") && tensors.contains("exp_avg_sq"))
    return OptimizerKind::schedule_free;
  if (tensors.contains("exp_avg_sq")) return OptimizerKind::adam;
  if (tensors.size() == 1 && tensors.contains("momentum_buffer")) return OptimizerKind::sgd;
  if (tensors.size() == 1 && tensors.contains("exp_avg")) return OptimizerKind::lion;
  if (tensors.contains("row_var") || tensors.contains("variance")) return OptimizerKind::adafactor;
  return OptimizerKind::other;
}

nlohmann::json defaults_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adam:
      return adamw_defaults();
    case OptimizerKind::sgd:
      return sgd_defaults();
    case OptimizerKind::lion:
      return lion_defaults();
    case OptimizerKind::muon:
      return muon_defaults();
    case OptimizerKind::schedule_free:
      return schedule_free_defaults();
    case OptimizerKind::adafactor:
      return adafactor_defaults();
    case OptimizerKind::other:
      break;
  }
  return nlohmann::json::object();
}

// A group as it is to be written. torch's own optimizers save all of their keys, and another class
// would take those of AdamW for its own. DeepSpeed's and other programs' Adam saves a part of them.
nlohmann::json whole_group(OptimizerKind kind, const nlohmann::json& group) {
  constexpr std::array<const char*, 5> keys_of_torch{"foreach", "maximize", "differentiable",
                                                     "capturable", "amsgrad"};
  const bool of_torch = !group.contains("bias_correction") &&
                        std::any_of(keys_of_torch.begin(), keys_of_torch.end(),
                                    [&](const char* key) { return group.contains(key); });
  const bool bare = group.size() == (group.contains("params") ? 1U : 0U);
  if (!bare && (kind != OptimizerKind::adam || of_torch)) return group;
  nlohmann::json whole = defaults_of(kind);
  whole.update(group);
  return whole;
}

// True if a parameter group says by name which parameters it has.
bool names_parameters(const nlohmann::json& group) {
  const auto list = group.find("params");
  return list != group.end() && list->is_array() &&
         std::all_of(list->begin(), list->end(),
                     [](const nlohmann::json& name) { return name.is_string(); });
}

// Values that torch's classes keep as tuples.
bool is_tuple(const std::string& key) {
  return key == "betas" || key == "etas" || key == "step_sizes" || key == "eps" ||
         key == "ns_coefficients";
}

}  // namespace

OptimizerLayout::OptimizerLayout(const Contents& contents) {
  std::map<std::string, std::size_t> numbers;
  for (const TensorInfo& tensor : contents.tensors) {
    if (tensor.part == Part::model) numbers.emplace(tensor.name, numbers.size());
  }
  std::map<std::pair<std::size_t, std::string>, Parameter> in_order;
  for (std::size_t i = 0; i < contents.tensors.size(); ++i) {
    const TensorInfo& tensor = contents.tensors[i];
    if (tensor.part != Part::optimizer) continue;
    const std::size_t dot = tensor.name.rfind('.');
    TESSERA_CHECK(dot != std::string::npos && dot > 0, ErrorCode::checkpoint,
                  "the optimizer's tensor {} has no parameter in its name", shown(tensor.name));
    const std::string name = tensor.name.substr(0, dot);
    const std::string key = tensor.name.substr(dot + 1);
    const auto number = numbers.find(name);
    Parameter& parameter =
        in_order[{number == numbers.end() ? numbers.size() : number->second, name}];
    parameter.name = name;
    const bool fresh =
        parameter.tensors.emplace(key == "momentum" ? "momentum_buffer" : key, i).second;
    TESSERA_CHECK(fresh, ErrorCode::checkpoint, "two tensors are the momentum of {}", shown(name));
  }
  for (auto& [order, parameter] : in_order) parameters_.push_back(std::move(parameter));
  if (parameters_.empty()) return;
  set_steps(contents);
  set_groups(contents);
}

void OptimizerLayout::set_steps(const Contents& contents) {
  const nlohmann::json& scalars = json_of(contents.scalars);
  const auto counts = scalars.find(step_counts_key);
  for (Parameter& parameter : parameters_) {
    const OptimizerKind kind = kind_of(parameter.tensors);
    if (kind == OptimizerKind::sgd || kind == OptimizerKind::lion) continue;  // they count no steps
    if (kind == OptimizerKind::schedule_free) continue;  // its groups count them
    parameter.has_step = true;
    if (counts != scalars.end() && counts->is_object() && counts->contains(parameter.name)) {
      const nlohmann::json& count = counts->at(parameter.name);
      TESSERA_CHECK(count.is_number(), ErrorCode::checkpoint,
                    "the steps done on {} are not a number: the checkpoint is damaged",
                    shown(parameter.name));
      parameter.step = count.get<float>();
    } else if (kind != OptimizerKind::adam && kind != OptimizerKind::adafactor &&
               !contents.scalars.contains("step")) {
      parameter.has_step = false;
    } else {
      TESSERA_CHECK(contents.scalars.contains("step"), ErrorCode::checkpoint,
                    "the checkpoint does not say how many steps the optimizer has done, which "
                    "PyTorch's {} needs: add --weights-only",
                    kind == OptimizerKind::adafactor ? "Adafactor" : "AdamW");
      parameter.step = static_cast<float>(contents.scalars.get<std::int64_t>("step"));
    }
  }
}

void OptimizerLayout::set_groups(const Contents& contents) {
  const nlohmann::json& scalars = json_of(contents.scalars);
  const OptimizerKind kind = kind_of(parameters_.front().tensors);
  groups_ = nlohmann::json::array();
  if (const auto kept = scalars.find(param_groups_key); kept != scalars.end() && kept->is_array()) {
    for (const nlohmann::json& group : *kept) {
      if (group.is_object()) groups_.push_back(whole_group(kind, group));
    }
  }
  if (groups_.empty() && kind == OptimizerKind::schedule_free) set_schedule_free_groups(scalars);
  if (groups_.empty()) set_default_groups();
  if (groups_.size() == 1 && !names_parameters(groups_[0])) {
    nlohmann::json& names = groups_[0]["params"] = nlohmann::json::array();
    for (const Parameter& parameter : parameters_) names.push_back(parameter.name);
  }
  TESSERA_CHECK(
      std::all_of(groups_.begin(), groups_.end(), names_parameters), ErrorCode::checkpoint,
      "the checkpoint has {} parameter groups and does not say which parameters each has: "
      "convert from the original checkpoint, or add --weights-only",
      groups_.size());
}

// A group for each kind of parameters. torch has its Muon beside an AdamW: a momentum alone is
// Muon's where others have AdamW's moments.
void OptimizerLayout::set_default_groups() {
  const bool has_adam = std::any_of(parameters_.begin(), parameters_.end(), [](const auto& one) {
    return kind_of(one.tensors) == OptimizerKind::adam;
  });
  const auto is_muon = [&](const Parameter& parameter) {
    return has_adam && kind_of(parameter.tensors) == OptimizerKind::sgd;
  };
  for (const bool muon : {true, false}) {
    nlohmann::json names = nlohmann::json::array();
    OptimizerKind kind = OptimizerKind::muon;
    for (const Parameter& parameter : parameters_) {
      if (is_muon(parameter) != muon) continue;
      if (!muon && names.empty()) kind = kind_of(parameter.tensors);
      names.push_back(parameter.name);
    }
    if (names.empty()) continue;
    groups_.push_back(defaults_of(kind));
    groups_.back()["params"] = std::move(names);
  }
}

// A group for the parameters with the same steps and the same numbers.
void OptimizerLayout::set_schedule_free_groups(const nlohmann::json& scalars) {
  std::map<std::tuple<std::int64_t, double, double>, std::size_t> group_of;
  for (const Parameter& parameter : parameters_) {
    const auto number = [&](const nlohmann::json::json_pointer& list) {
      const auto place = list / parameter.name;
      TESSERA_CHECK(scalars.contains(place) && scalars.at(place).is_number(), ErrorCode::checkpoint,
                    "the checkpoint has no number {} of {}: add --weights-only", list.back(),
                    shown(parameter.name));
      return scalars.at(place).get<double>();
    };
    using Path = nlohmann::json::json_pointer;
    const double weight_sum = number(Path() / numbers_key / "weight_sum");
    const double lr_max = number(Path() / numbers_key / "lr_max");
    const auto steps = static_cast<std::int64_t>(number(Path() / step_counts_key));
    const auto [found, is_new] =
        group_of.emplace(std::tuple(steps, lr_max, weight_sum), groups_.size());
    if (is_new) {
      nlohmann::json group = schedule_free_defaults();
      group["k"] = steps;
      group["lr_max"] = group["lr"] = lr_max;
      group["weight_sum"] = weight_sum;
      group["params"] = nlohmann::json::array();
      groups_.push_back(std::move(group));
    }
    groups_[found->second]["params"].push_back(parameter.name);
  }
}

void write_json_value(PickleWriter& pickle, const std::string& key, const nlohmann::json& value) {
  write_json(pickle, value, is_tuple(key));
}

void write_json(PickleWriter& pickle, const nlohmann::json& value, bool as_tuple) {
  switch (value.type()) {
    case nlohmann::json::value_t::boolean:
      pickle.boolean(value.get<bool>());
      return;
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned:
      pickle.integer(value.get<std::int64_t>());
      return;
    case nlohmann::json::value_t::number_float:
      pickle.real(value.get<double>());
      return;
    case nlohmann::json::value_t::string:
      pickle.text(value.get<std::string>());
      return;
    case nlohmann::json::value_t::array:
      if (as_tuple) {
        pickle.mark();
      } else {
        pickle.empty_list();
      }
      for (const nlohmann::json& each : value) {
        write_json(pickle, each);
        if (!as_tuple) pickle.append();
      }
      if (as_tuple) pickle.tuple();
      return;
    case nlohmann::json::value_t::object:
      pickle.empty_dict();
      for (const auto& [key, each] : value.items()) {
        pickle.text(key);
        write_json(pickle, each, is_tuple(key));
        pickle.set_item();
      }
      return;
    default:
      pickle.none();
  }
}

}  // namespace tessera::checkpoint::formats
