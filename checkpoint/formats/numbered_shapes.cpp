// Takes each shape at the first place that is left, from the front and from the back. If both give
// the same places, no other choice exists: the first choice has every shape at its earliest place,
// the last one at its latest.
#include "checkpoint/formats/numbered_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/counted.h"
#include "checkpoint/formats/pickle/pickle.h"

namespace tessera::checkpoint::formats {

namespace {

// Empty if a shape has no place.
template <class Wanted, class Model>
std::vector<std::size_t> earliest_places(Wanted wanted, const Wanted& wanted_end,
                                         const Model& begin, const Model& end) {
  std::vector<std::size_t> places;
  auto at = begin;
  for (; wanted != wanted_end; ++wanted) {
    at = std::find_if(at, end, [&](const ModelParameter& parameter) {
      return !wanted->shape || *wanted->shape == parameter.shape;
    });
    if (at == end) return {};
    places.push_back(static_cast<std::size_t>(at - begin));
    ++at;
  }
  return places;
}

}  // namespace

ChosenParameters choose_parameters(const std::vector<NumberedParameter>& numbered,
                                   const std::vector<ModelParameter>& model) {
  const std::string counts = fmt::format(
      "it has the states of {} and the model beside it {}, so that buffers or frozen parameters "
      "among them shift the numbers",
      counted(numbered.size(), "parameter"), model.size());
  const auto first = earliest_places(numbered.begin(), numbered.end(), model.begin(), model.end());
  if (first.empty()) {
    return {{}, {}, counts + ", and no choice of the model's in their order has their shapes"};
  }
  auto last = earliest_places(numbered.rbegin(), numbered.rend(), model.rbegin(), model.rend());
  std::reverse(last.begin(), last.end());
  for (std::size_t& place : last) place = model.size() - 1 - place;
  ChosenParameters chosen;
  std::set<std::size_t> taken;
  for (std::size_t i = 0; i < numbered.size(); ++i) {
    if (first[i] != last[i]) {
      return {{},
              {},
              fmt::format("{}, and shapes do not tell which they are: parameter {} may be {} or {}",
                          counts, numbered[i].number, shown(model[first[i]].name),
                          shown(model[last[i]].name))};
    }
    chosen.names[numbered[i].number] = model[first[i]].name;
    taken.insert(first[i]);
  }
  std::size_t left = 0;
  while (taken.contains(left)) ++left;
  chosen.note = fmt::format(
      "the optimizer has {} of the model's {} tensors, which the shapes of its states tell; the "
      "others, such as {}, are frozen or buffers",
      numbered.size(), model.size(), shown(model[left].name));
  return chosen;
}

std::optional<std::pair<std::string, std::string>> alike_parameters(
    const std::map<std::size_t, std::string>& names, const std::vector<ModelParameter>& model) {
  std::set<std::string> numbered;
  for (const auto& entry : names) numbered.insert(entry.second);
  std::map<std::vector<std::int64_t>, std::string> numbered_of, other_of;
  for (const ModelParameter& parameter : model) {
    const bool own = numbered.contains(parameter.name);
    const auto known = numbered_of.find(parameter.shape);
    if (known != numbered_of.end()) return std::pair(known->second, parameter.name);
    const auto other = other_of.find(parameter.shape);
    if (own && other != other_of.end()) return std::pair(other->second, parameter.name);
    (own ? numbered_of : other_of).emplace(parameter.shape, parameter.name);
  }
  return std::nullopt;
}

}  // namespace tessera::checkpoint::formats
