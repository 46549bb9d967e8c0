// Names the model's tensors and the optimizer's.
#include "checkpoint/formats/torch/state_names.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/formats/torch/state_dicts.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera::checkpoint::formats {

namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 3> wrappers{"_fsdp_wrapped_module.",
                                                   "_checkpoint_wrapped_module.", "_orig_mod."};
constexpr std::string_view data_parallel = "module.";

bool is_digits(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

// A hyperparameter in a note.
std::string short_json(const json& value) {
  constexpr std::size_t longest = 160;
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

struct OptimizerTensor {
  std::string parameter;
  std::string key;
  StateTensor* tensor = nullptr;
};

class Namer {
 public:
  Namer(StateItems items, const std::function<double(std::size_t)>& number,
        const std::string& source)
      : items_(std::move(items)),
        number_(number),
        source_(source),
        sorted_(sort_state(items_, source)) {}

  NamedState run() {
    out_.contents.notes = sorted_.notes;
    name_model();
    read_groups();
    name_optimizer();
    TESSERA_CHECK(!out_.contents.tensors.empty(), ErrorCode::checkpoint,
                  "{} holds no tensors of a model or an optimizer", source_);
    return std::move(out_);
  }

 private:
  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    out_.contents.notes.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  json& scalars() { return json_of(out_.contents.scalars); }

  void name_model() {
    const std::vector<StateTensor*>& tensors = sorted_.model;
    if (tensors.empty()) return;
    all_in_module_ = std::all_of(tensors.begin(), tensors.end(), [](const StateTensor* t) {
      return t->path.back().starts_with(data_parallel);
    });
    std::map<std::string, std::string> names, memory;  // new to old name; memory to first name
    std::size_t renamed = 0;
    for (StateTensor* tensor : tensors) {
      const std::string& before = tensor->path.back();
      const std::string name = parameter_name(before);
      TESSERA_CHECK(
          !name.ends_with("_flat_param") && !name.ends_with("_flat_parameter"),
          ErrorCode::checkpoint,
          "{} holds FSDP's own flat parameters ({}), whose parts have no names: save with "
          "StateDictType.SHARDED_STATE_DICT or FULL_STATE_DICT",
          source_, shown(before));
      TESSERA_CHECK(names.emplace(name, before).second, ErrorCode::checkpoint,
                    "{}: {} and {} are both {} without their wrappers", source_, shown(before),
                    shown(names[name]), shown(name));
      renamed += name != before ? 1 : 0;
      if (!tensor->memory.empty()) {
        const auto [first, fresh] = memory.emplace(tensor->memory, name);
        if (!fresh) {
          out_.contents.aliases.emplace(name, first->second);
          continue;
        }
      }
      parameters_.push_back(tensor);
      add(Part::model, name, *tensor);
    }
    if (renamed > 0) {
      note("{} names lost the prefixes of wrappers (module., _orig_mod. ...)", renamed);
    }
  }

  std::string parameter_name(const std::string& name) const {
    std::string out = unwrapped_name(name);
    if (all_in_module_ && out.starts_with(data_parallel)) out.erase(0, data_parallel.size());
    return out;
  }

  void add(Part part, std::string name, const StateTensor& tensor) {
    TensorInfo info;
    info.part = part;
    info.name = std::move(name);
    info.stored = tensor.stored;
    info.shape = tensor.shape;
    out_.contents.tensors.push_back(std::move(info));
    out_.handles.push_back(tensor.handle);
  }

  // param_groups may be stored whole, as [i], or as [i].key.
  void read_groups() {
    if (sorted_.optimizer.empty()) return;
    for (const StateValue& each : items_.values) {
      const auto found = std::find(each.path.begin(), each.path.end(), "param_groups");
      const auto at = static_cast<std::size_t>(found - each.path.begin());
      if (found == each.path.end() || joined_keys(each.path, at) != sorted_.optimizer_dict) {
        continue;
      }
      const std::size_t rest = each.path.size() - at - 1;
      if (rest == 0 && each.value.is_array()) {
        groups_.assign(each.value.begin(), each.value.end());
      } else if (rest >= 1 && is_digits(each.path[at + 1])) {
        const auto number = static_cast<std::size_t>(std::stoul(each.path[at + 1]));
        TESSERA_CHECK(number <= items_.values.size(), ErrorCode::checkpoint,
                      "{} has parameter group {} and not as many values", source_, number);
        if (number >= groups_.size()) groups_.resize(number + 1, json::object());
        json& group = groups_[number];
        if (rest == 1) group = each.value;
        if (rest == 2 && group.is_object()) group[each.path[at + 2]] = each.value;
      }
    }
    std::erase_if(groups_, [](const json& group) { return !group.is_object(); });
  }

  // The names of the parameters that the optimizer knows by number, or none if they are not
  // certain.
  std::vector<std::string> numbered_parameters() {
    std::vector<std::string> names;
    for (const json& group : groups_) {
      const auto list = group.find("param_names");
      if (list == group.end() || !list->is_array()) break;
      for (const json& name : *list) {
        names.push_back(name.is_string() ? parameter_name(name.get<std::string>()) : "");
      }
    }
    if (!names.empty() || groups_.size() > 1) return names;
    for (const StateTensor* tensor : parameters_) {
      // Integers are buffers, as num_batches_tracked: no optimizer steps them.
      if (tensor->stored->dtype && !is_floating(*tensor->stored->dtype)) continue;
      names.push_back(parameter_name(tensor->path.back()));
    }
    return names;
  }

  // Returns what is missing, or nothing.
  std::string name_by_number(std::vector<OptimizerTensor>& states) {
    const std::vector<std::string> names = numbered_parameters();
    if (names.empty() && groups_.size() > 1) {
      return fmt::format(
          "it has {} parameter groups without param_names, which would say which is "
          "which",
          groups_.size());
    }
    std::map<std::string, const std::vector<std::int64_t>*> shapes;
    for (const StateTensor* tensor : parameters_) {
      shapes[parameter_name(tensor->path.back())] = &tensor->shape;
    }
    std::set<std::string> numbers;
    for (OptimizerTensor& state : states) {
      numbers.insert(state.parameter);
      const auto number = static_cast<std::size_t>(std::stoul(state.parameter));
      if (number >= names.size() || names[number].empty()) {
        return fmt::format("it has a state of parameter {}, and {}", state.parameter,
                           number >= names.size() ? fmt::format("the model beside it has {}",
                                                                counted(names.size(), "parameter"))
                                                  : "no name of it");
      }
      state.parameter = names[number];
      const auto shape = shapes.find(state.parameter);
      const bool fits =
          shape == shapes.end() || state.key == "step" || *shape->second == state.tensor->shape;
      if (!fits) {
        return fmt::format("the state of parameter {} has the shape {}, and {} in its place has {}",
                           number, describe_shape(state.tensor->shape), shown(state.parameter),
                           describe_shape(*shape->second));
      }
    }
    // Buffers and frozen parameters shift the numbers: only when all have a state is it certain.
    if (numbers.size() == names.size()) return {};
    return fmt::format(
        "it has the states of {} and the model beside it {}, so that buffers or "
        "frozen parameters among them would shift the numbers",
        counted(numbers.size(), "parameter"), names.size());
  }

  void name_optimizer() {
    if (sorted_.optimizer.empty()) return;
    std::vector<OptimizerTensor> states;
    bool numbered = false;
    for (StateTensor* tensor : sorted_.optimizer) {
      const StatePath& path = tensor->path;
      const std::string& id = path[path.size() - 2];
      numbered = numbered || is_digits(id);
      states.push_back({parameter_name(id), path.back(), tensor});
    }
    const bool all_numbered = std::all_of(
        states.begin(), states.end(), [](const auto& state) { return is_digits(state.parameter); });
    const std::string missing = numbered && all_numbered ? name_by_number(states) : std::string();
    if (!missing.empty()) {
      note(
          "not read: the optimizer's state, whose parameters have numbers for names, and the model "
          "beside it does not tell which is which: {}; save it with get_optimizer_state_dict or "
          "FSDP.optim_state_dict, or give the optimizer named_parameters() (PyTorch 2.6), to keep "
          "it",
          missing);
      out_.contents.unread_state = "the optimizer's state in " + source_;
      return;
    }
    StepCounts steps;
    std::set<std::string> seen;
    for (const OptimizerTensor& state : states) {
      if (state.key == "step") {
        add_step_count(steps, state.parameter, number_(state.tensor->handle), source_);
        continue;
      }
      const std::string name =
          state.parameter + "." + (state.key == "momentum_buffer" ? "momentum" : state.key);
      TESSERA_CHECK(seen.insert(name).second, ErrorCode::checkpoint,
                    "{}: two states of the optimizer are {}", source_, shown(name));
      add(Part::optimizer, name, *state.tensor);
    }
    plain_steps(steps);
    keep_step_counts(steps, out_.contents);
    finish_groups();
  }

  // Older PyTorch kept steps as numbers.
  void plain_steps(StepCounts& steps) {
    for (const StateValue& each : items_.values) {
      const bool is_step = each.path.size() >= 3 && each.path.back() == "step" &&
                           each.path[each.path.size() - 3] == "state" && each.value.is_number();
      if (!is_step || is_digits(each.path[each.path.size() - 2])) continue;
      add_step_count(steps, parameter_name(each.path[each.path.size() - 2]),
                     each.value.get<double>(), source_);
    }
  }

  void finish_groups() {
    json kept = json::array();
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      json group = groups_[i];
      std::size_t parameters = 0;
      std::string line;
      if (const auto list = group.find("params"); list != group.end() && list->is_array()) {
        parameters = list->size();
        for (json& name : *list) {
          if (name.is_string()) name = parameter_name(name.get<std::string>());
        }
      }
      group.erase("param_names");
      for (const auto& [key, value] : group.items()) {
        if (key == "params" || value.is_null() || value == false) continue;
        line += fmt::format(", {} {}", shown(key), short_json(value));
      }
      note("parameter group {}: {}{}", i, counted(parameters, "parameter"), line);
      kept.push_back(std::move(group));
    }
    if (!kept.empty()) scalars()[param_groups_key] = std::move(kept);
  }

  StateItems items_;
  const std::function<double(std::size_t)>& number_;
  const std::string& source_;
  const SortedState sorted_;  // points into items_
  NamedState out_;
  std::vector<StateTensor*> parameters_;  // the model's tensors, without aliases
  std::vector<json> groups_;
  bool all_in_module_ = false;
};

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
  json& counts = json_of(contents.scalars)[step_counts_key] = json::object();
  for (const TensorInfo& tensor : contents.tensors) {
    if (tensor.part == Part::model) counts[tensor.name] = 0;  // without state: not stepped yet
  }
  for (const auto& [name, step] : steps) counts[name] = step;
}

NamedState name_state(StateItems items, const std::function<double(std::size_t)>& number,
                      const std::string& source) {
  return Namer(std::move(items), number, source).run();
}

}  // namespace tessera::checkpoint::formats
