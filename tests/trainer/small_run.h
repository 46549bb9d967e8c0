// A small net with dropout, 22 samples for it, and runs of them on ranks that are threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "support/one_thread.h"
#include "trainer/tensor_task.h"
#include "trainer/trainer.h"

namespace tessera::testing {

inline constexpr std::int64_t sample_width = 6;
inline constexpr std::int64_t sample_classes = 3;
inline constexpr std::int64_t all_samples = 22;

struct DroppingNet : nn::Module {
  DroppingNet() {
    in = register_module("in", nn::Linear(sample_width, 16));
    drop = register_module("drop", nn::Dropout(0.2));
    out = register_module("out", nn::Linear(16, sample_classes));
  }
  Tensor forward(const Tensor& x) const { return out(drop(relu(in(x)))); }
  nn::Linear in, out;
  nn::Dropout drop;
};

inline float value_of(std::int64_t sample, std::int64_t column) {
  return std::sin(static_cast<float>(sample * sample_width + column));
}

inline data::TensorDataset rows_of_numbers(std::int64_t samples = all_samples) {
  std::vector<float> values;
  std::vector<std::int32_t> targets;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    for (std::int64_t i = 0; i < sample_width; ++i) values.push_back(value_of(sample, i));
    targets.push_back(static_cast<std::int32_t>(sample % sample_classes));
  }
  return {Tensor::from(values, {samples, sample_width}), Tensor::from(targets, {samples})};
}

inline tasks::TensorLoss cross_entropy_of(DroppingNet& net) {
  return [&net](const Tensor& x, const Tensor& y) { return cross_entropy(net.forward(x), y); };
}

// Sample n is made of n, so that a task needs no data in memory.
class MadeTask : public tasks::Task {
 public:
  struct Numbers : tasks::Prepared {
    std::vector<float> values;
    std::vector<std::int32_t> targets;
  };

  [[nodiscard]] nn::Module& module() override { return net_; }
  [[nodiscard]] std::vector<std::int64_t> samples_per_epoch() const override {
    return {all_samples};
  }
  [[nodiscard]] std::unique_ptr<tasks::Prepared> prepare(
      std::size_t /*data_set*/, std::span<const std::int64_t> samples) const override {
    auto batch = std::make_unique<Numbers>();
    batch->samples = batch->tokens = static_cast<std::int64_t>(samples.size());
    for (const std::int64_t number : samples) {
      const std::int64_t sample = number % all_samples;
      for (std::int64_t i = 0; i < sample_width; ++i) batch->values.push_back(value_of(sample, i));
      batch->targets.push_back(static_cast<std::int32_t>(sample % sample_classes));
    }
    return batch;
  }
  [[nodiscard]] std::unique_ptr<tasks::Prepared> blank(std::int64_t samples) const override {
    return prepare(0, std::vector<std::int64_t>(static_cast<std::size_t>(samples)));
  }
  [[nodiscard]] Tensor loss(const tasks::Prepared& batch, const Context& context) override {
    const auto& numbers = dynamic_cast<const Numbers&>(batch);
    const Tensor x = Tensor::from(numbers.values, {batch.samples, sample_width});
    const Tensor y = Tensor::from(numbers.targets, {batch.samples});
    return cross_entropy(net_.forward(x.to(context.device())), y.to(context.device()));
  }

 private:
  DroppingNet net_;
};

// What a rank's trainer is made of.
struct SmallRun {
  int ranks = 1;
  TrainerOptions options = {};  // without a batch size the ranks have 8 samples together
  // Unset: the net and its 22 rows.
  std::function<std::unique_ptr<tasks::Task>(const Context&, DroppingNet&)> make = {};
  std::function<void(const Context&, TrainerOptions&)> change = {};  // of one rank's options
};

// Calls drive(trainer) on each rank.
template <class Drive>
void run_small(const SmallRun& run, const Drive& drive) {
  launch(run.ranks, [&](Context& context) {
    const OneThread one_thread;
    manual_seed(3);
    DroppingNet net;
    std::unique_ptr<tasks::Task> task =
        run.make ? run.make(context, net)
                 : tasks::make_tensor_task(net, rows_of_numbers(), cross_entropy_of(net));
    TrainerOptions options = run.options;
    if (options.batch_size == 1) options.batch_size = 8 / run.ranks;
    if (run.change) run.change(context, options);
    Trainer trainer(std::move(task), context, options);
    drive(trainer);
  });
}

inline std::vector<float> losses_of(Trainer& trainer, std::int64_t until) {
  std::vector<float> losses;
  while (trainer.position().steps < until) losses.push_back(trainer.step().value().loss);
  return losses;
}

}  // namespace tessera::testing
