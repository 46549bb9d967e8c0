// Shared by the tests of models: names and shapes as text, a toy task, gradient checks of whole
// models.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "engine/ops.h"
#include "engine/optim/optimizer.h"
#include "engine/random.h"
#include "models/registry/registry.h"
#include "support/gradient_check.h"
#include "support/one_thread.h"

namespace tessera::testing {

// "name [sizes]" of every parameter, in order.
inline std::vector<std::string> names_and_shapes(const nn::Module& module) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor, shape] : module.named_parameters()) {
    lines.push_back(name + " " + shape.to_string());
  }
  return lines;
}

inline std::int64_t parameter_count(const nn::Module& module) {
  std::int64_t total = 0;
  for (const auto& parameter : module.named_parameters()) total += parameter.shape.elements();
  return total;
}

// Rows that count up by one, modulo the vocabulary, from different starts.
struct CountingBatch {
  Tensor ids;
  Tensor targets;
};
inline CountingBatch counting_batch(std::int64_t batch, std::int64_t length,
                                    std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < length; ++t) {
      ids.push_back(static_cast<std::int32_t>((3 * b + t) % vocabulary));
      targets.push_back(static_cast<std::int32_t>((3 * b + t + 1) % vocabulary));
    }
  }
  return {Tensor::from(ids, {batch, length}), Tensor::from(targets, {batch, length})};
}

// The loss before the first and after the last of `steps` AdamW steps on one toy batch.
inline std::pair<double, double> losses_of_training(models::LanguageModel& model, int steps) {
  const OneThread one_thread;
  const CountingBatch batch = counting_batch(2, 8, model.vocabulary());
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2, .weight_decay = 0});
  double first = 0;
  for (int step = 0; step < steps; ++step) {
    const Tensor loss = model.loss(batch.ids, batch.targets);
    if (step == 0) first = loss.item();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return {first, model.loss(batch.ids, batch.targets).item()};
}

// Compares the tape with central differences for every parameter of an fp64 model, dropout included
// (its key is fixed).
inline void check_model_gradients(nlohmann::json config) {
  config["initializer_range"] = 0.3;  // far from linear
  manual_seed(7);
  const nn::ParameterDTypeGuard fp64(float64);
  const auto model = models::make_language_model(config);
  const CountingBatch batch = counting_batch(2, 5, model->vocabulary());
  std::vector<Tensor> leaves;
  for (const auto& parameter : model->named_parameters()) leaves.push_back(parameter.tensor);
  const auto loss = [&] {
    begin_batch({.step = 3, .first_sample = 0, .samples = 2});
    return model->loss(batch.ids, batch.targets);
  };
  check_gradients(loss, leaves, {.step = 1e-5, .tolerance = 5e-8, .max_elements = 12});
}

}  // namespace tessera::testing
