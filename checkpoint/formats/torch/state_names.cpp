// Names the model's tensors and the optimizer's.
#include "checkpoint/formats/torch/state_names.h"

#include <fmt/format.h>
#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/formats/numbered_shapes.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/formats/torch/state_dicts.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera::checkpoint::formats {

namespace {

using nlohmann::json;

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

// True for the keys of torch.optim.Adafactor whose tensors have 1 in place of a dimension of the
// parameter: the last one, or the one before.
bool is_factor(const std::string& key) {
  return key == "row_var" || key == "col_var";
}

// Whether a state of this shape can be that of a parameter.
bool fits_parameter(const std::string& key, const std::vector<std::int64_t>& state,
                    std::vector<std::int64_t> parameter) {
  if (key == "step" || state.empty()) return true;
  if (is_factor(key) && parameter.size() >= 2) {
    parameter[parameter.size() - (key == "row_var" ? 1 : 2)] = 1;
  }
  return state == parameter;
}

// The parameter's shape, from those of its two factors.
std::vector<std::int64_t> joined_factors(std::vector<std::int64_t> one,
                                         const std::vector<std::int64_t>& other) {
  for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i)
    one[i] = std::max(one[i], other[i]);
  return one;
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
    TESSERA_CHECK(
        !sorted_.model.empty() || sorted_.optimizer.empty() || !out_.contents.tensors.empty(),
        ErrorCode::checkpoint,
        "{} holds the state of an optimizer and no model, and its parameters have numbers "
        "for names: put it beside the model's pytorch_model.bin, as optimizer.pt, and "
        "convert that folder",
        source_);
    TESSERA_CHECK(!out_.contents.tensors.empty(), ErrorCode::checkpoint,
                  "{} holds no tensors of a model or an optimizer; save model.state_dict() to it",
                  source_);
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
      shapes_.emplace(name, &tensor->shape);
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

  // The names of the parameters that the optimizer knows by number: those of param_names, or the
  // model's tensors in their order if there is one group.
  void read_numbers() {
    std::size_t count = 0;
    for (const json& group : groups_) {
      auto list = group.find("param_names");
      given_ = list != group.end();
      if (!given_) list = group.find(assumed_names_key);
      if (list == group.end() || !list->is_array()) break;
      const auto params = group.find("params");
      const bool placed = params != group.end() && params->is_array() &&
                          params->size() == list->size() &&
                          std::all_of(params->begin(), params->end(), is_number);
      for (std::size_t i = 0; i < list->size(); ++i) {
        const json& name = (*list)[i];
        const std::size_t number = placed ? (*params)[i].get<std::size_t>() : count;
        numbers_[number] = name.is_string() ? parameter_name(name.get<std::string>()) : "";
        ++count;
      }
    }
    if (!numbers_.empty() || groups_.size() > 1) return;
    given_ = false;
    for (const StateTensor* tensor : parameters_) {
      // Integers are buffers, as num_batches_tracked: no optimizer steps them.
      if (tensor->stored->dtype && !is_floating(*tensor->stored->dtype)) continue;
      const std::string name = parameter_name(tensor->path.back());
      if (!is_statistic(name)) numbers_.emplace(numbers_.size(), name);
    }
  }

  // The running statistics of torch's norms are buffers, too.
  [[nodiscard]] bool is_statistic(const std::string& name) const {
    for (const std::string_view ending : {"running_mean", "running_var"}) {
      if (!name.ends_with(ending)) continue;
      const std::string module = name.substr(0, name.size() - ending.size());
      return shapes_.contains(module + "num_batches_tracked");
    }
    return false;
  }

  static bool is_number(const json& value) {
    return value.is_number_integer() && value.get<std::int64_t>() >= 0;
  }

  // Finds the tensors of the model that have these names. DistributedDataParallel's
  // named_parameters() begin with "module." where the state dict of the module inside does not.
  // Returns what does not match, or nothing.
  std::string match_names(const std::vector<std::string>& names) {
    if (shapes_.empty()) return {};
    const auto unknown = [&](const std::string& name) { return !shapes_.contains(resolved(name)); };
    const auto first = std::find_if(names.begin(), names.end(), unknown);
    if (first == names.end()) return {};
    in_module_ = true;
    const auto foreign = std::find_if(names.begin(), names.end(), unknown);
    const bool all_begin = std::all_of(names.begin(), names.end(), [](const std::string& name) {
      return name.starts_with(data_parallel);
    });
    if (all_begin && foreign == names.end()) {
      note("the names of the optimizer's parameters lost the prefix {}", data_parallel);
      return {};
    }
    in_module_ = false;
    return fmt::format("its parameter {} is not a tensor of the model beside it",
                       shown(foreign == names.end() ? *first : *foreign));
  }

  // The model's name of a parameter of the optimizer.
  [[nodiscard]] std::string resolved(const std::string& parameter) const {
    std::string name = parameter_name(parameter);
    if (in_module_ && name.starts_with(data_parallel)) name.erase(0, data_parallel.size());
    const auto alias = out_.contents.aliases.find(name);
    return alias == out_.contents.aliases.end() ? name : alias->second;
  }

  // Returns what is missing, or nothing.
  std::string name_by_number(std::vector<OptimizerTensor>& states) {
    if (numbers_.empty() && groups_.size() > 1) {
      return fmt::format(
          "it has {} parameter groups without param_names, which would say which is "
          "which",
          groups_.size());
    }
    if (std::string problem = given_ ? "" : find_numbers(states); !problem.empty()) {
      return problem;
    }
    for (OptimizerTensor& state : states) {
      const auto number = static_cast<std::size_t>(std::stoul(state.parameter));
      const auto name = numbers_.find(number);
      if (name == numbers_.end() || name->second.empty()) {
        return fmt::format(
            "it has a state of parameter {}, and {}", state.parameter,
            given_ || name != numbers_.end()
                ? std::string("no name of it")
                : fmt::format("the model beside it has {}", counted(numbers_.size(), "parameter")));
      }
      state.parameter = name->second;
      const auto shape = shapes_.find(resolved(state.parameter));
      const bool fits =
          shape == shapes_.end() || fits_parameter(state.key, state.tensor->shape, *shape->second);
      if (!fits) {
        return fmt::format("the state of parameter {} has the shape {}, and {} in its place has {}",
                           number, describe_shape(state.tensor->shape), shown(state.parameter),
                           describe_shape(*shape->second));
      }
    }
    return {};
  }

  // The optimizer's parameters in its order, with the shapes of their states.
  [[nodiscard]] std::vector<NumberedParameter> numbered_parameters(
      const std::vector<OptimizerTensor>& states) const {
    std::map<std::size_t, NumberedParameter> known;
    for (const OptimizerTensor& state : states) {
      const auto number = static_cast<std::size_t>(std::stoul(state.parameter));
      NumberedParameter& parameter = known[number];
      parameter.number = number;
      if (state.key == "step" || state.tensor->shape.empty()) continue;
      parameter.shape = is_factor(state.key) && parameter.shape
                            ? joined_factors(*parameter.shape, state.tensor->shape)
                            : state.tensor->shape;
    }
    std::vector<NumberedParameter> parameters;
    const json params = groups_.empty() ? json() : groups_.front().value("params", json());
    if (params.is_array() && std::all_of(params.begin(), params.end(), is_number)) {
      for (const json& number : params) {
        const auto found = known.find(number.get<std::size_t>());
        parameters.push_back(found == known.end()
                                 ? NumberedParameter{number.get<std::size_t>(), std::nullopt}
                                 : found->second);
      }
    } else {
      for (const auto& entry : known) parameters.push_back(entry.second);
    }
    return parameters;
  }

  // The names of numbers that are not given; returns why they are not certain.
  std::string find_numbers(const std::vector<OptimizerTensor>& states) {
    const std::vector<NumberedParameter> parameters = numbered_parameters(states);
    if (shapes_.empty() || parameters.size() == numbered_model_.size()) return {};
    for (const OptimizerTensor& state : states) {
      // Named where the states get their names.
      if (std::stoul(state.parameter) >= std::max(parameters.size(), numbers_.size())) return {};
    }
    ChosenParameters chosen = choose_parameters(parameters, numbered_model_);
    if (!chosen.problem.empty()) return chosen.problem;
    numbers_ = std::move(chosen.names);
    out_.contents.notes.push_back(std::move(chosen.note));
    return {};
  }

  // Shapes prove the order of the parameters, unless two of them are equal.
  void note_assumed_order() {
    const auto alike = alike_parameters(numbers_, numbered_model_);
    if (!alike) return;
    note(
        "assumed: the optimizer's parameters, which have numbers for names, are in the order of "
        "the model's state dict; parameters of one shape, such as {} and {}, would have each "
        "other's state if the optimizer was made in another order: give it named_parameters() "
        "(PyTorch 2.6), which saves param_names, to be certain",
        shown(alike->first), shown(alike->second));
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
    const bool by_number = numbered && all_numbered;
    const std::string missing = by_number ? match_numbers(states) : match_states(states);
    if (!missing.empty()) {
      leave_out_state(missing, by_number && !given_);
      return;
    }
    if (by_number && !given_) note_assumed_order();
    for (OptimizerTensor& state : states) state.parameter = resolved(state.parameter);
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

  // The reason why the states get no names; empty if they get them.
  std::string match_numbers(std::vector<OptimizerTensor>& states) {
    read_numbers();
    std::vector<std::string> names;
    for (const auto& [number, name] : numbers_) {
      if (!name.empty()) names.push_back(name);
    }
    std::string unknown = match_names(names);
    if (!unknown.empty()) return unknown;
    for (const std::string& name : names) {
      const auto shape = shapes_.find(resolved(name));
      if (shape != shapes_.end()) numbered_model_.push_back({name, *shape->second});
    }
    return name_by_number(states);
  }

  std::string match_states(const std::vector<OptimizerTensor>& states) {
    std::vector<std::string> names;
    for (const OptimizerTensor& state : states) names.push_back(state.parameter);
    return match_names(names);
  }

  void leave_out_state(const std::string& cause, bool without_names) {
    if (without_names) {
      note(
          "not read: the optimizer's state, whose parameters have numbers for names, and the model "
          "beside it does not tell which is which: {}; save it with get_optimizer_state_dict or "
          "FSDP.optim_state_dict, or give the optimizer named_parameters() (PyTorch 2.6), to keep "
          "it",
          cause);
    } else {
      note(
          "not read: the optimizer's state: {}; save it with the names of the model, by "
          "get_state_dict, to keep it",
          cause);
    }
    out_.contents.unread_state = fmt::format("the optimizer's state in {} ({})", source_, cause);
  }

  // Older PyTorch kept steps as numbers.
  void plain_steps(StepCounts& steps) {
    for (const StateValue& each : items_.values) {
      const bool is_step = each.path.size() >= 3 && each.path.back() == "step" &&
                           each.path[each.path.size() - 3] == "state" && each.value.is_number();
      if (!is_step) continue;
      const std::string& parameter = each.path[each.path.size() - 2];
      const auto number = is_digits(parameter)
                              ? numbers_.find(static_cast<std::size_t>(std::stoul(parameter)))
                              : numbers_.end();
      if (is_digits(parameter) && number == numbers_.end()) continue;
      add_step_count(steps, resolved(number == numbers_.end() ? parameter : number->second),
                     each.value.get<double>(), source_);
    }
  }

  // A parameter in the list of a group: its name, or its number.
  void name_parameter(json& parameter) const {
    if (parameter.is_string()) parameter = resolved(parameter.get<std::string>());
    if (!is_number(parameter)) return;
    const auto name = numbers_.find(parameter.get<std::size_t>());
    if (name != numbers_.end() && !name->second.empty()) parameter = resolved(name->second);
  }

  void finish_groups() {
    json kept = json::array();
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      json group = groups_[i];
      std::size_t parameters = 0;
      std::string line;
      if (const auto list = group.find("params"); list != group.end() && list->is_array()) {
        parameters = list->size();
        for (json& parameter : *list) name_parameter(parameter);
      }
      group.erase("param_names");
      group.erase(assumed_names_key);
      for (const auto& [key, value] : group.items()) {
        if (key == "params" || value.is_null() || value == false) continue;
        line += fmt::format(", {} {}", shown(key), short_json(value));
      }
      note("parameter group {}: {}{}", i, counted(parameters, "parameter"), line);
      kept.push_back(std::move(group));
    }
    keep_counts_of_groups(kept, out_.contents);
    if (!kept.empty()) scalars()[param_groups_key] = std::move(kept);
  }

  StateItems items_;
  const std::function<double(std::size_t)>& number_;
  const std::string& source_;
  const SortedState sorted_;  // points into items_
  NamedState out_;
  std::vector<StateTensor*> parameters_;  // the model's tensors, without aliases
  std::map<std::string, const std::vector<std::int64_t>*> shapes_;  // of these, by name
  std::vector<json> groups_;
  std::map<std::size_t, std::string> numbers_;  // of the optimizer's parameters, to their names
  std::vector<ModelParameter> numbered_model_;  // those of the model that may have a number
  bool given_ = false;                          // the file says which number has which name
  bool all_in_module_ = false;                  // the names of the model began with "module."
  bool in_module_ = false;                      // only those of the optimizer do
};

}  // namespace

NamedState name_state(StateItems items, const std::function<double(std::size_t)>& number,
                      const std::string& source) {
  return Namer(std::move(items), number, source).run();
}

}  // namespace tessera::checkpoint::formats
