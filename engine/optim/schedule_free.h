// Schedule-free AdamW: the weights to evaluate are an average of those that steps reach.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/optim/optimizer.h"
#include "engine/optim/settings.h"

namespace tessera::optim {

class ScheduleFreeAdamW;
struct ScheduleFreeAdamWOptions {
  using Made = ScheduleFreeAdamW;
  double lr = 2.5e-3;
  double beta1 = 0.9;  // the part of the average in the point of the gradients
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  // A step's weight in the average: step^r times the largest rate so far to this power.
  double r = 0;
  double weight_lr_power = 2;
  ParameterFilter decay = {};  // which parameters decay; empty: all
  std::vector<ParameterGroup> groups = {};
};

Settings settings_of(const ScheduleFreeAdamWOptions& options);

// AdamW without a schedule of the rate and without a first moment (Defazio et al. 2024, "The Road
// Less Scheduled", arXiv:2405.15682), as the authors' AdamWScheduleFree. Besides the parameter, at
// which gradients are taken, it keeps the sequence of steps "z", their "average" and "exp_avg_sq":
// 12 bytes of state for an fp32 element. The rate is constant, after a warmup. kernels/optimizer.h
// has the formula.
//
// Evaluate the average: Optimizer::begin_evaluation(). A checkpoint has it as the weights, and "z"
// and "exp_avg_sq" as the state. The parameters follow from the average and z, so evaluations and
// saves change no bit. After the first step, values that others write into the parameters are lost
// at the next step: load through ts::load with the optimizer, or make a new one.
class ScheduleFreeAdamW : public Optimizer {
 public:
  // Error(configuration) if parameters, gradients or state are offloaded.
  ScheduleFreeAdamW(std::vector<nn::NamedParameter> parameters,
                    const ScheduleFreeAdamWOptions& options);
  [[nodiscard]] std::vector<std::string> state_names() const override {
    return {"z", "exp_avg_sq", "average"};
  }
  [[nodiscard]] std::optional<std::size_t> average_state() const override { return 2; }
  [[nodiscard]] std::vector<std::string> number_names() const override {
    return {"lr_max", "weight_sum"};
  }

 protected:
  void update(const Update& update) override;
  void count_step(std::size_t parameter, double lr_scale, std::span<double> numbers) override;
  void return_to_training(const Update& update) override;
  void take_weights(const Update& update, bool has_state) override;

 private:
  // The weight of a step in the average.
  [[nodiscard]] double weight_of(std::int64_t step, double lr_max) const;

  ScheduleFreeAdamWOptions options_;
};

}  // namespace tessera::optim
