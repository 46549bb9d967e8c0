// Optimizer state in PyTorch's form.
#include "checkpoint/formats/torch/torch_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
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

// The optimizers, by a state that those before them in the list do not have.
struct OptimizerKind {
  std::string_view state;
  bool counts_steps;  // has `step` beside its tensors
  nlohmann::json (*defaults)();
};
constexpr OptimizerKind kinds[] = {{"exp_avg_sq", true, adamw_defaults},
                                   {"momentum_buffer", false, sgd_defaults},
                                   {"exp_avg", false, lion_defaults}};

// AdamW's groups are those of other optimizers too, which count no steps.
template <class Tensors>
OptimizerKind kind_of(const Tensors& tensors) {
  const auto* const found = std::find_if(
      std::begin(kinds), std::end(kinds),
      [&](const OptimizerKind& kind) { return tensors.contains(std::string(kind.state)); });
  return found == std::end(kinds) ? OptimizerKind{"", false, adamw_defaults} : *found;
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
    if (!kind_of(parameter.tensors).counts_steps) continue;
    parameter.has_step = true;
    if (counts != scalars.end() && counts->is_object() && counts->contains(parameter.name)) {
      const nlohmann::json& count = counts->at(parameter.name);
      TESSERA_CHECK(count.is_number(), ErrorCode::checkpoint,
                    "the steps done on {} are not a number: the checkpoint is damaged",
                    shown(parameter.name));
      parameter.step = count.get<float>();
    } else {
      TESSERA_CHECK(contents.scalars.contains("step"), ErrorCode::checkpoint,
                    "the checkpoint does not say how many steps the optimizer has done, which "
                    "PyTorch's AdamW needs: add --weights-only");
      parameter.step = static_cast<float>(contents.scalars.get<std::int64_t>("step"));
    }
  }
}

void OptimizerLayout::set_groups(const Contents& contents) {
  const nlohmann::json& scalars = json_of(contents.scalars);
  const nlohmann::json defaults = kind_of(parameters_.front().tensors).defaults();
  groups_ = nlohmann::json::array();
  if (const auto kept = scalars.find(param_groups_key); kept != scalars.end() && kept->is_array()) {
    for (const nlohmann::json& group : *kept) {
      nlohmann::json whole = defaults;
      if (group.is_object()) whole.update(group);
      groups_.push_back(std::move(whole));
    }
  }
  if (groups_.empty()) groups_.push_back(defaults);
  if (groups_.size() == 1 && !groups_[0].contains("params")) {
    nlohmann::json& names = groups_[0]["params"] = nlohmann::json::array();
    for (const Parameter& parameter : parameters_) names.push_back(parameter.name);
  }
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
        write_json(pickle, each, key == "betas");
        pickle.set_item();
      }
      return;
    default:
      pickle.none();
  }
}

}  // namespace tessera::checkpoint::formats
