// Every optimizer, and one of a program's own: rows for the tests of what holds for all of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "engine/optim/adafactor.h"
#include "engine/optim/adamw_8bit.h"
#include "engine/optim/muon.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule_free.h"
#include "engine/optim/update_elements.h"
#include "sharding/policy/options.h"

namespace tessera::testing {

// RMSprop, written with the loop for users.
class OwnRmsProp : public optim::Optimizer {
 public:
  OwnRmsProp(std::vector<nn::NamedParameter> parameters, double lr)
      : Optimizer(std::move(parameters), optim::decay_matrices) {
    set_learning_rate(lr);
    make_state_files(OwnRmsProp::state_names());
  }
  [[nodiscard]] std::vector<std::string> state_names() const override { return {"square_avg"}; }

 protected:
  void update(const optim::Update& u) override {
    const double lr = learning_rate() * u.lr_scale;
    optim::update_elements<1>(u, 0.1, [lr](auto& p, auto g, auto decay, auto& v) {
      g += decay * p;
      v = 0.9 * v + 0.1 * g * g;
      p -= lr * g / (std::sqrt(v) + 1e-6);
    });
  }
};

struct OptimizerOfList {
  std::string name;
  optim::OptimizerFactory make;
  bool in_files = true;          // its state may be offloaded
  optim::ShardNeeds needs = {};  // of the options of sharding
  // The options with what it needs.
  [[nodiscard]] ShardingOptions fit(ShardingOptions options) const {
    options.apart = needs.apart;
    options.block = std::lcm(options.block, needs.block);
    return options;
  }
  friend void PrintTo(const OptimizerOfList& one, std::ostream* out) { *out << one.name; }
};

// Some parameters of the tests' small models are large for it.
inline optim::AdamW8BitOptions eight_bit_of_list() {
  return {.lr = 0.01, .min_8bit_size = 40, .decay = optim::decay_matrices};
}

inline const std::vector<OptimizerOfList>& all_optimizers() {
  using Parameters = std::vector<nn::NamedParameter>;
  using Made = std::unique_ptr<optim::Optimizer>;
  static const std::vector<OptimizerOfList> all{
      {"AdamW",
       [](Parameters parameters) -> Made {
         return std::make_unique<optim::AdamW>(
             std::move(parameters),
             optim::AdamWOptions{.lr = 0.01, .decay = optim::decay_matrices});
       }},
      {"Lion",
       [](Parameters parameters) -> Made {
         return std::make_unique<optim::Lion>(
             std::move(parameters),
             optim::LionOptions{.lr = 0.003, .weight_decay = 0.1, .decay = optim::decay_matrices});
       }},
      {"Sgd",
       [](Parameters parameters) -> Made {
         return std::make_unique<optim::Sgd>(
             std::move(parameters),
             optim::SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
       }},
      {"Own",
       [](Parameters parameters) -> Made {
         return std::make_unique<OwnRmsProp>(std::move(parameters), 0.003);
       }},
      {"Muon",
       [](Parameters parameters) -> Made {
         return std::make_unique<optim::Muon>(
             std::move(parameters),
             optim::MuonOptions{.lr = 0.01, .adamw_lr = 0.003, .decay = optim::decay_matrices});
       },
       false},
      {"AdamW8Bit",
       [](Parameters parameters) -> Made {
         return std::make_unique<optim::AdamW8Bit>(std::move(parameters), eight_bit_of_list());
       },
       false, optim::needs_of(eight_bit_of_list())},
      {"ScheduleFree",
       [](Parameters parameters) -> Made {
         return std::make_unique<optim::ScheduleFreeAdamW>(
             std::move(parameters),
             optim::ScheduleFreeAdamWOptions{
                 .lr = 0.003, .weight_decay = 0.1, .decay = optim::decay_matrices});
       },
       false},
      {"AdamWRounded",
       [](Parameters parameters) -> Made {
         return std::make_unique<optim::AdamW>(
             std::move(parameters),
             optim::AdamWOptions{
                 .lr = 0.01, .decay = optim::decay_matrices, .state_dtype = bfloat16, .seed = 5});
       },
       false},
      {"Adafactor",
       [](Parameters parameters) -> Made {
         return std::make_unique<optim::Adafactor>(
             std::move(parameters),
             optim::AdafactorOptions{
                 .lr = 0.05, .weight_decay = 0.1, .decay = optim::decay_matrices});
       },
       false, optim::needs_of(optim::AdafactorOptions{})},
  };
  return all;
}

// Those whose state may be offloaded to files.
inline std::vector<OptimizerOfList> optimizers_in_files() {
  std::vector<OptimizerOfList> some;
  std::copy_if(all_optimizers().begin(), all_optimizers().end(), std::back_inserter(some),
               [](const OptimizerOfList& one) { return one.in_files; });
  return some;
}

}  // namespace tessera::testing
