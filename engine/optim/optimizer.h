// Optimizers over fp32 parameters (an unsharded module's, or one rank's shards: the update is
// element-wise, so both give the same bits). State is made at the first step that sees a gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/nn/module.h"

namespace tessera::optim {

using ParameterFilter = std::function<bool(const nn::NamedParameter&)>;

// Weight decay for matrices and tables, none for biases and norms: the usual choice for
// transformers.
bool decay_matrices(const nn::NamedParameter& parameter);

class Optimizer {
 public:
  explicit Optimizer(std::vector<nn::NamedParameter> parameters);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient. Parameters without one are left alone, state and
  // all.
  void step();
  void zero_grad();

  [[nodiscard]] double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double value) { learning_rate_ = value; }
  [[nodiscard]] const std::vector<nn::NamedParameter>& parameters() const { return parameters_; }

  // The names of the state tensors that go with each parameter ("exp_avg"); each has the
  // parameter's local shape.
  [[nodiscard]] virtual std::vector<std::string> state_names() const = 0;
  // State tensor `name` of parameter `index`, made (zero) when absent: for saving and loading.
  Tensor state(std::size_t index, const std::string& name);
  // How many steps each parameter has seen (bias correction counts them).
  [[nodiscard]] std::vector<std::int64_t> step_counts() const { return steps_; }
  void set_step_counts(std::vector<std::int64_t> counts);
  // Bytes of all state tensors.
  [[nodiscard]] std::size_t state_bytes() const;

 protected:
  virtual void update(std::size_t index, const Tensor& parameter, const Tensor& gradient,
                      float gradient_scale, std::int64_t step) = 0;

 private:
  std::vector<nn::NamedParameter> parameters_;
  std::vector<std::map<std::string, Tensor>> states_;
  std::vector<std::int64_t> steps_;
  double learning_rate_ = 0;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  ParameterFilter decay = {};  // which parameters decay; empty: all
};

class AdamW : public Optimizer {
 public:
  AdamW(std::vector<nn::NamedParameter> parameters, const AdamWOptions& options);
  [[nodiscard]] std::vector<std::string> state_names() const override {
    return {"exp_avg", "exp_avg_sq"};
  }

 private:
  void update(std::size_t index, const Tensor& parameter, const Tensor& gradient,
              float gradient_scale, std::int64_t step) override;
  AdamWOptions options_;
};

struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  ParameterFilter decay = {};
};

class Sgd : public Optimizer {
 public:
  Sgd(std::vector<nn::NamedParameter> parameters, const SgdOptions& options);
  [[nodiscard]] std::vector<std::string> state_names() const override;

 private:
  void update(std::size_t index, const Tensor& parameter, const Tensor& gradient,
              float gradient_scale, std::int64_t step) override;
  SgdOptions options_;
};

}  // namespace tessera::optim
