// Weights to evaluate that are averages of those that are trained, and the numbers beside them.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "engine/device/queue.h"
#include "engine/optim/optimizer.h"

namespace tessera::optim {

void Optimizer::begin_evaluation() {
  TESSERA_REQUIRE(!evaluates_, "begin_evaluation() again: call end_evaluation() before");
  evaluates_ = true;  // also if a write fails: end_evaluation() restores what was written
  write_weights([](std::size_t) { return true; },
                [this](const Update& u) {
                  current_queue(u.device).copy(
                      u.parameter, u.states.at(*average_state()),
                      static_cast<std::size_t>(u.count) * size_of(u.dtype));
                });
}

void Optimizer::end_evaluation() {
  TESSERA_REQUIRE(evaluates_, "end_evaluation() without begin_evaluation()");
  write_weights([](std::size_t) { return true; },
                [this](const Update& u) { return_to_training(u); });
  evaluates_ = false;
}

Tensor Optimizer::weights(std::size_t parameter) {
  const std::optional<std::size_t> average = average_state();
  if (!average || steps_[parameter] == 0) return parameters_[parameter].tensor;
  return state(parameter, state_names_of(parameter).at(*average));
}

std::vector<std::string> Optimizer::saved_state_names_of(std::size_t parameter) const {
  std::vector<std::string> names = state_names_of(parameter);
  if (const auto average = average_state()) {
    names.erase(names.begin() + static_cast<std::ptrdiff_t>(*average));
  }
  return names;
}

void Optimizer::end_load(const std::vector<LoadedParts>& loaded) {
  TESSERA_REQUIRE(loaded.size() == parameters_.size(), "{} loaded parts for {} parameters",
                  loaded.size(), parameters_.size());
  for (const bool has_state : {true, false}) {
    write_weights([&](std::size_t i) { return loaded[i].weights && loaded[i].state == has_state; },
                  [&](const Update& u) { take_weights(u, has_state); });
  }
  if (evaluates_) return;
  write_weights([&](std::size_t i) { return loaded[i].weights || loaded[i].state; },
                [this](const Update& u) { return_to_training(u); });
}

void Optimizer::set_numbers(std::vector<std::vector<double>> numbers) {
  TESSERA_REQUIRE(numbers.size() == parameters_.size(), "numbers of {} parameters for {}",
                  numbers.size(), parameters_.size());
  numbers_ = std::move(numbers);
}

Update Optimizer::update_of_weights(std::size_t segment, ElementRange range) {
  const Segment& whole = segments_[segment];
  Update what;
  what.parameter_index = whole.parameters.front();
  what.device = whole.storage->device();
  what.dtype = whole.dtype;
  what.count = range.count;
  what.states.resize(state_names_of(what.parameter_index).size());
  for (std::size_t i = 0; i < what.states.size(); ++i) {
    const Tensor state = segment_state(segment, i);
    if (!what.device.is_meta()) {
      what.states[i] = state.raw_data() + state_offset(segment, i, range.first);
    }
  }
  if (!what.device.is_meta()) {
    what.parameter = whole.data() + range.first * static_cast<std::int64_t>(size_of(whole.dtype));
  }
  return what;
}

void Optimizer::write_weights(const std::function<bool(std::size_t parameter)>& concerns,
                              const std::function<void(const Update&)>& write) {
  if (!average_state()) return;
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const Segment& segment = segments_[s];
    bool notified = false;
    ElementRange range{};
    const auto flush = [&] {
      if (range.count > 0 && !segment.storage->device().is_meta())
        write(update_of_weights(s, range));
      range = {};
    };
    for (std::size_t i = 0; i < segment.parameters.size(); ++i) {
      const std::size_t parameter = segment.parameters[i];
      if (steps_[parameter] == 0 || !concerns(parameter)) {
        flush();
        continue;
      }
      // Also on ranks without elements of them: copies of the parameters become stale.
      if (!std::exchange(notified, true)) segment.storage->will_write();
      parameters_[parameter].tensor.count_write();
      const ElementRange place = segment.places[i];
      if (place.count == 0) continue;
      // The padding between neighbours is like the parameters.
      if (range.count == 0) range.first = place.first;
      range.count = place.first + place.count - range.first;
    }
    flush();
  }
}

}  // namespace tessera::optim
