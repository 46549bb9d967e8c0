// The loop of a user's own optimizer: every type, the ranges of decay, and what it refuses.
#include "engine/optim/update_elements.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/low_precision.h"
#include "support/errors.h"

namespace tessera {
namespace {

// p -= decay * p; sum += g; p -= sum.
void take_step(const optim::Update& update, double weight_decay) {
  optim::update_elements<1>(update, weight_decay, [](auto& p, auto g, auto decay, auto& sum) {
    p -= decay * p;
    sum += g;
    p -= sum;
  });
}

template <class T, class Gradient>
struct Elements {
  std::vector<T> parameter = std::vector<T>(40'000, T{2});
  std::vector<T> state = std::vector<T>(40'000, T{1});
  std::vector<Gradient> gradient;

  Elements(DType of_parameters, DType of_gradients) {
    for (std::size_t i = 0; i < parameter.size(); ++i) {
      gradient.push_back(from_float<Gradient>(static_cast<float>(i % 4)));
    }
    update.parameter = reinterpret_cast<std::byte*>(parameter.data());
    update.gradient = reinterpret_cast<const std::byte*>(gradient.data());
    update.states = {reinterpret_cast<std::byte*>(state.data())};
    update.count = static_cast<std::int64_t>(parameter.size());
    update.dtype = of_parameters;
    update.gradient_dtype = of_gradients;
    update.gradient_scale = 0.5f;
    update.decay_edges = edges;
  }

  void expect_updated(double weight_decay) const {
    for (std::size_t i = 0; i < parameter.size(); ++i) {
      const bool decays = (i >= 3 && i < 17'000) || i >= 39'999;
      const double sum = 1 + 0.5 * static_cast<double>(i % 4);
      ASSERT_EQ(state[i], sum) << i;
      ASSERT_EQ(parameter[i], (decays ? 2 * (1 - weight_decay) : 2) - sum) << i;
    }
  }

  std::vector<std::int64_t> edges = {3, 17'000, 39'999};
  optim::Update update;
};

template <class T, class Gradient>
void expect_formula(DType of_parameters, DType of_gradients) {
  for (const int threads : {1, 3}) {
    set_compute_threads(threads);
    Elements<T, Gradient> elements(of_parameters, of_gradients);
    take_step(elements.update, 0.25);
    elements.expect_updated(0.25);
    Elements<T, Gradient> of_group(of_parameters, of_gradients);
    of_group.update.weight_decay = 0.5;
    take_step(of_group.update, 0.25);
    of_group.expect_updated(0.5);
  }
  set_compute_threads(1);
}

TEST(UpdateElements, EveryType) {
  const int threads = compute_threads();
  expect_formula<float, float>(float32, float32);
  expect_formula<float, BFloat16>(float32, bfloat16);
  expect_formula<float, Float16>(float32, float16);
  expect_formula<double, double>(float64, float64);
  expect_formula<double, BFloat16>(float64, bfloat16);
  set_compute_threads(threads);
}

TEST(UpdateElements, PlansWithoutNumbers) {
  Elements<float, float> elements(float32, float32);
  const std::vector<float> before = elements.parameter;
  for (const Device device : {Device::meta(), Device::planned()}) {
    elements.update.device = device;
    take_step(elements.update, 0.25);
  }
  EXPECT_EQ(elements.parameter, before);
}

TEST(UpdateElements, RefusesGpusAndOtherTypes) {
  Elements<float, float> elements(float32, float32);
  elements.update.device = Device::cuda();
  EXPECT_TRUE(testing::error_of([&] { take_step(elements.update, 0); }, ErrorCode::configuration)
                  .starts_with("update_elements works on the CPU, and these parameters are on "));
  elements.update.device = Device::cpu();
  elements.update.gradient_dtype = float64;
  EXPECT_EQ(testing::misuse_of([&] { take_step(elements.update, 0); }),
            "update_elements: gradients of float64 for parameters of float32");
  elements.update.gradient_dtype = float32;
  elements.update.has_formats = true;
  EXPECT_EQ(testing::misuse_of([&] { take_step(elements.update, 0); }),
            "update_elements: a state of this optimizer has a StateFormat; states of the "
            "parameter's dtype and shape are needed");
  elements.update.has_formats = false;
  elements.update.states.clear();
  EXPECT_EQ(testing::misuse_of([&] { take_step(elements.update, 0); }),
            "update_elements<1>: the optimizer's state_names() has 0 names");
}

}  // namespace
}  // namespace tessera
