// The steps of an optimizer by parameter, and names without wrappers.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/formats/torch/state_names.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::array<std::string_view, 3> wrappers{"_fsdp_wrapped_module.",
                                                   "_checkpoint_wrapped_module.", "_orig_mod."};

}  // namespace

std::string unwrapped_name(const std::string& name) {
  std::string out = name;
  for (const std::string_view wrapper : wrappers) {
    for (std::size_t at = out.find(wrapper); at != std::string::npos; at = out.find(wrapper, at)) {
      if (at == 0 || out[at - 1] == '.') {
        out.erase(at, wrapper.size());
      } else {
        ++at;
      }
    }
  }
  return out;
}

void add_step_count(StepCounts& steps, const std::string& parameter, double value,
                    const std::string& source) {
  TESSERA_CHECK(value >= 0 && value < 1e15 && value == std::floor(value), ErrorCode::checkpoint,
                "{}: the step of {} is {}, not a whole number", source, shown(parameter), value);
  steps[parameter] = static_cast<std::int64_t>(value);
}

void keep_step_counts(const StepCounts& steps, Contents& contents) {
  if (steps.empty()) return;
  const auto [least, most] = std::minmax_element(
      steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  contents.scalars.set("step", most->second);
  if (least->second != most->second) {
    contents.notes.push_back(
        fmt::format("the optimizer's steps differ by parameter: {} of {}, {} of {}", least->second,
                    shown(least->first), most->second, shown(most->first)));
  }
  nlohmann::json& counts = json_of(contents.scalars)[step_counts_key] = nlohmann::json::object();
  for (const TensorInfo& tensor : contents.tensors) {
    if (tensor.part == Part::model) counts[tensor.name] = 0;  // without state: not stepped yet
  }
  for (const auto& [name, step] : steps) counts[name] = step;
}

void keep_counts_of_groups(const nlohmann::json& groups, Contents& contents) {
  std::set<std::string> averaged;  // parameters with its state
  for (const TensorInfo& tensor : contents.tensors) {
    if (tensor.part == Part::optimizer && tensor.name.ends_with(".z")) {
      averaged.insert(tensor.name.substr(0, tensor.name.size() - 2));
    }
  }
  StepCounts steps;
  nlohmann::json numbers = nlohmann::json::object();
  for (const nlohmann::json& group : groups) {
    const auto number = [&](const char* key) {
      return group.contains(key) && group[key].is_number();
    };
    if (!number("k") || !number("lr_max") || !number("weight_sum")) continue;
    if (group.value("train_mode", nlohmann::json(false)) == true) {
      contents.notes.push_back(
          "the optimizer was saved in training mode, so the weights are not the averages, and "
          "training cannot go on from the result: call its eval() before a save");
      return;
    }
    for (const nlohmann::json& name : group.value("params", nlohmann::json::array())) {
      if (!name.is_string() || !averaged.contains(name)) continue;
      add_step_count(steps, name, group["k"].get<double>(), "the parameter groups");
      for (const char* key : {"lr_max", "weight_sum"}) numbers[key][name] = group[key];
    }
  }
  if (steps.empty()) return;
  keep_step_counts(steps, contents);
  // Parameters without state have not been stepped yet.
  for (const auto& [name, count] : json_of(contents.scalars)[step_counts_key].items()) {
    if (steps.contains(name)) continue;
    for (auto& values : numbers) values[name] = 0.0;
  }
  json_of(contents.scalars)[numbers_key] = std::move(numbers);
}

}  // namespace tessera::checkpoint::formats
