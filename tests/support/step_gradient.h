// The gradient of a trainer's step, put together from the shards of all ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/random.h"
#include "support/one_thread.h"
#include "trainer/trainer.h"

namespace tessera::testing {

struct StepGradient {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradient;
};

// One step of a trainer on each of these ranks. The gradient is the step of SGD, with a rate that
// is a power of two and large enough that the parameters' own rounding is small beside it. Takes
// the place of the options' optimizer.
inline StepGradient gradient_of_step(
    int ranks, TrainerOptions options,
    const std::function<std::unique_ptr<tasks::Task>()>& make_task) {
  constexpr double rate = 64;
  options.max_grad_norm = 0;
  options.optimizer = optim::SgdOptions{.lr = rate};
  StepGradient result;
  std::mutex mutex;
  launch(ranks, [&](Context& context) {
    const OneThread one_thread;
    manual_seed(7);
    Trainer trainer(make_task(), context, options);
    std::vector<std::vector<double>> before;
    for (const ShardedParameter& part : trainer.model().sharded_parameters()) {
      before.push_back(part.local.to_vector());
    }
    const float loss = trainer.step().value().loss;
    const std::lock_guard lock(mutex);
    result.loss = loss;
    std::size_t index = 0;
    for (const ShardedParameter& part : trainer.model().sharded_parameters()) {
      std::vector<double>& whole = result.gradient[part.name];
      whole.resize(static_cast<std::size_t>(part.shape.elements()));
      const std::vector<double> after = part.local.to_vector();
      for (std::size_t i = 0; i < after.size(); ++i) {
        whole.at(static_cast<std::size_t>(part.first) + i) =
            (before.at(index)[i] - after[i]) / rate;
      }
      ++index;
    }
  });
  return result;
}

// The largest difference of the gradients, by the largest element of the expected one.
inline double largest_difference(const StepGradient& expected, const StepGradient& got) {
  double largest = 0, difference = 0;
  for (const auto& [name, values] : expected.gradient) {
    const std::vector<double>& others = got.gradient.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::fabs(values[i]));
      difference = std::max(difference, std::fabs(values[i] - others.at(i)));
    }
  }
  return difference / largest;
}

}  // namespace tessera::testing
