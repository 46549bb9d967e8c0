// Sorts nested dicts by their names and by the shapes of their tensors.
#include "checkpoint/formats/torch/state_dicts.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/counted.h"
#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::array<std::string_view, 6> model_dicts{"model", "module",           "state_dict",
                                                      "app",   "model_state_dict", "net"};
constexpr std::array<std::string_view, 4> optimizer_dicts{
    "optim", "optimizer", "optimizer_state_dict", "optim_state_dict"};

template <class Names>
bool is_among(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The leading keys of a tensor's path that are names of dicts of a model.
std::size_t known_keys(const StatePath& path) {
  const auto end = std::find_if(path.begin(), path.end() - 1,
                                [](const auto& key) { return !is_among(model_dicts, key); });
  return static_cast<std::size_t>(end - path.begin());
}

std::string place_of(const std::string& dict) {
  return dict.empty() ? "its outermost dict" : shown(dict);
}

// Position of "state" in the path of a tensor of optimizer state, [..., "state", name, key].
std::optional<std::size_t> state_place(const StatePath& path, const std::set<std::string>& known) {
  if (path.size() < 3 || path[path.size() - 3] != "state") return std::nullopt;
  const std::size_t at = path.size() - 3;
  const bool named = at > 0 && is_among(optimizer_dicts, path[at - 1]);
  if (named || known.contains(joined_keys(path, at))) return at;
  return std::nullopt;
}

constexpr std::string_view flat_state = "state.";
constexpr std::string_view flat_groups = "param_groups.";

// Turns the flat dicts of optimizers into nested ones. PyTorch's _flatten_optim_state_dict makes
// them: "state.<parameter>.<key>" and, for each parameter, "param_groups.<parameter>.<key>".
class FlatOptimizers {
 public:
  explicit FlatOptimizers(StateItems& items) : items_(items) {}

  void unflatten() {
    take_groups();
    for (StateTensor& tensor : items_.tensors) split(tensor.path);
    for (StateValue& value : items_.values) split(value.path);
    for (const auto& [dict, groups] : dicts_) add_groups(dict, groups);
  }

 private:
  struct Groups {
    std::vector<std::string> names;  // of parameters, in their order
    std::map<std::string, nlohmann::json> settings;
  };

  void take_groups() {
    std::erase_if(items_.values, [&](StateValue& value) {
      std::string_view key = value.path.back();
      if (!key.starts_with(flat_groups)) return false;
      key.remove_prefix(flat_groups.size());
      const std::size_t dot = key.rfind('.');
      if (dot == std::string_view::npos || dot == 0) return false;
      Groups& groups = dicts_[StatePath(value.path.begin(), value.path.end() - 1)];
      const auto [at, fresh] = groups.settings.try_emplace(std::string(key.substr(0, dot)));
      if (fresh) groups.names.push_back(at->first);
      at->second[std::string(key.substr(dot + 1))] = std::move(value.value);
      return true;
    });
  }

  // [..., "state.a.weight.exp_avg"] to [..., "state", "a.weight", "exp_avg"].
  void split(StatePath& path) const {
    const std::string key = path.back();
    if (!key.starts_with(flat_state)) return;
    const auto dict = dicts_.find(StatePath(path.begin(), path.end() - 1));
    if (dict == dicts_.end()) return;
    const std::string rest = key.substr(flat_state.size());
    const std::size_t dot = rest.rfind('.');
    path.back() = "state";
    if (dot == std::string::npos || !dict->second.settings.contains(rest.substr(0, dot))) {
      path.push_back(rest);  // of a dict within the state: left out, and no tensor of the model
      return;
    }
    path.push_back(rest.substr(0, dot));
    path.push_back(rest.substr(dot + 1));
  }

  void add_groups(const StatePath& dict, const Groups& groups) {
    nlohmann::json list = nlohmann::json::array();
    std::map<std::string, std::size_t> numbers;  // of the groups, by their settings
    for (const std::string& name : groups.names) {
      const nlohmann::json& settings = groups.settings.at(name);
      const std::string text =
          settings.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
      const auto [number, fresh] = numbers.emplace(text, list.size());
      if (fresh) {
        list.push_back(settings);
        list.back()["params"] = nlohmann::json::array();
      }
      list[number->second]["params"].push_back(name);
    }
    StatePath path = dict;
    path.emplace_back("param_groups");
    items_.values.push_back({std::move(path), std::move(list)});
  }

  StateItems& items_;
  std::map<StatePath, Groups> dicts_;
};

class StateSorter {
 public:
  StateSorter(StateItems& items, const std::string& source) : items_(items), source_(source) {}

  SortedState run() {
    FlatOptimizers(items_).unflatten();
    find_optimizers();
    sort_tensors();
    if (!models_.empty()) out_.model = std::move(models_.front().second);
    if (!states_.empty()) {
      out_.optimizer_dict = states_.begin()->first;
      out_.optimizer = std::move(states_.begin()->second);
    }
    return std::move(out_);
  }

 private:
  using TensorDicts = std::map<std::string, std::vector<StateTensor*>>;

  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    out_.notes.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // Dicts that have param_groups beside their state.
  void find_optimizers() {
    for (const StateValue& each : items_.values) {
      const auto found = std::find(each.path.begin(), each.path.end(), "param_groups");
      if (found == each.path.end()) continue;
      optimizers_.insert(
          joined_keys(each.path, static_cast<std::size_t>(found - each.path.begin())));
    }
  }

  void sort_tensors() {
    TensorDicts dicts;
    for (StateTensor& tensor : items_.tensors) {
      if (const auto at = state_place(tensor.path, optimizers_)) {
        states_[joined_keys(tensor.path, *at)].push_back(&tensor);
      } else {
        dicts[joined_keys(tensor.path, tensor.path.size() - 1)].push_back(&tensor);
      }
    }
    leave_out_loose_tensors(dicts);
    for (auto& [name, tensors] : dicts) {
      const StatePath& path = tensors.front()->path;
      if (known_keys(path) + 1 == path.size()) models_.emplace_back(name, std::move(tensors));
    }
    std::erase_if(dicts, [](const auto& dict) { return dict.second.empty(); });
    if (models_.empty() && !dicts.empty()) take_only_dict(dicts);
    for (const auto& [name, tensors] : dicts) {
      note("left out: {} in {}, of neither model nor optimizer", counted(tensors.size(), "tensor"),
           shown(name));
    }
    TESSERA_CHECK(models_.size() <= 1, ErrorCode::checkpoint,
                  "{} holds two models, in {} and {}: save the one you want by itself", source_,
                  place_of(models_[0].first), place_of(models_[1].first));
    TESSERA_CHECK(states_.size() <= 1, ErrorCode::checkpoint,
                  "{} holds the states of several optimizers, which Tessera has no place for: save "
                  "them apart",
                  source_);
  }

  static bool is_loose(const std::vector<StateTensor*>& tensors) {
    return std::all_of(tensors.begin(), tensors.end(),
                       [](const StateTensor* tensor) { return tensor->shape.size() < 2; });
  }

  // Scalars and vectors around a dict of matrices are a loss, a step, a state of random numbers.
  void leave_out_loose_tensors(TensorDicts& dicts) {
    for (auto dict = dicts.begin(); dict != dicts.end();) {
      const bool around = std::any_of(dicts.begin(), dicts.end(), [&](const auto& other) {
        return other.first != dict->first &&
               (dict->first.empty() || other.first.starts_with(dict->first + ".")) &&
               !is_loose(other.second);
      });
      if (!around || !is_loose(dict->second)) {
        ++dict;
        continue;
      }
      note("left out: {} beside the model's, such as {}", counted(dict->second.size(), "tensor"),
           shown(dict->second.front()->path.back()));
      dict = dicts.erase(dict);
    }
  }

  // Beside a dict of matrices.
  void leave_out_dicts_of_vectors(TensorDicts& dicts) {
    const auto loose = [](const auto& dict) { return is_loose(dict.second); };
    if (std::all_of(dicts.begin(), dicts.end(), loose)) return;
    for (const auto& dict : dicts) {
      if (!loose(dict)) continue;
      note("left out: {} in {}, of neither model nor optimizer",
           counted(dict.second.size(), "tensor"), shown(dict.first));
    }
    std::erase_if(dicts, loose);
  }

  // Without a dict of a model's name, the only one there is. One inside a model's dict is a part of
  // that model, and its key a part of the names.
  void take_only_dict(TensorDicts& dicts) {
    leave_out_dicts_of_vectors(dicts);
    const std::string first = dicts.begin()->first;
    TESSERA_CHECK(dicts.size() == 1, ErrorCode::checkpoint,
                  "{} holds several models, or parts of one, in {} and {}: save the one you want "
                  "by itself, as a state dict",
                  source_, place_of(first), place_of(std::next(dicts.begin())->first));
    std::vector<StateTensor*> tensors = std::move(dicts.begin()->second);
    dicts.clear();
    const std::size_t known = known_keys(tensors.front()->path);
    if (known == 0) note("the tensors of {} were taken for the model's", shown(first));
    for (StateTensor* tensor : tensors) {
      if (known == 0) continue;
      const StatePath rest(tensor->path.begin() + static_cast<std::ptrdiff_t>(known),
                           tensor->path.end());
      tensor->path.resize(known);
      tensor->path.push_back(joined_keys(rest, rest.size()));
    }
    models_.emplace_back(first, std::move(tensors));
  }

  StateItems& items_;
  const std::string& source_;
  SortedState out_;
  std::set<std::string> optimizers_;
  TensorDicts states_;  // by the optimizer's dict
  std::vector<std::pair<std::string, std::vector<StateTensor*>>> models_;
};

}  // namespace

bool is_optimizer_value(const StatePath& path) {
  const std::string& key = path.back();
  return key == "step" || key.starts_with(flat_groups) ||
         (key.starts_with(flat_state) && key.ends_with(".step")) || is_among(path, "param_groups");
}

std::string joined_keys(const StatePath& path, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += (i == 0 ? "" : ".") + path[i];
  return out;
}

SortedState sort_state(StateItems& items, const std::string& source) {
  return StateSorter(items, source).run();
}

}  // namespace tessera::checkpoint::formats
