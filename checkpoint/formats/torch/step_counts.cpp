// The steps of an optimizer by parameter, and names without wrappers.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
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

}  // namespace tessera::checkpoint::formats
