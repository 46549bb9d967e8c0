// The loss of a teacher has torch's values and gradients (tests/tasks/fixtures/distillation.json,
// which tests/judges/distillation.py wrote).
#include "tasks/losses/distillation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/memory.h"
#include "engine/ops.h"

namespace tessera::tasks {
namespace {

using LossNumbers = std::vector<double>;

Tensor distilled_tensor(const nlohmann::json& numbers, const Shape& shape, DType dtype) {
  return cast(Tensor::from(numbers.get<LossNumbers>(), shape), dtype).clone();
}

nlohmann::json distillation_cases() {
  const char* const source = std::getenv("TESSERA_SOURCE_DIR");
  std::ifstream file(std::string(source != nullptr ? source : ".") +
                     "/tests/tasks/fixtures/distillation.json");
  return nlohmann::json::parse(file);
}

TEST(Distillation, LossAndGradientAreThoseOfTorch) {
  const std::map<std::string, DType> dtypes = {
      {"float32", float32}, {"bfloat16", bfloat16}, {"float64", float64}};
  const nlohmann::json cases = distillation_cases();
  ASSERT_EQ(cases.size(), 15u);
  for (const nlohmann::json& one : cases) {
    const DType dtype = dtypes.at(one.at("dtype"));
    const std::string title = one.at("dtype").get<std::string>() + " T " +
                              one.at("temperature").dump() + " weight " + one.at("weight").dump();
    const Shape shape{one.at("shape").at(0).get<std::int64_t>(),
                      one.at("shape").at(1).get<std::int64_t>()};
    Tensor logits = distilled_tensor(one.at("logits"), shape, dtype);
    logits.set_requires_grad(true);
    const Tensor teacher = distilled_tensor(one.at("teacher"), shape, dtype);
    const Tensor targets =
        Tensor::from(one.at("targets").get<std::vector<std::int64_t>>(), {shape[0]});
    const Tensor loss =
        distillation_loss(logits, teacher, targets,
                          {.temperature = one.at("temperature"), .weight = one.at("weight")});
    loss.backward();
    const double tolerance = dtype == float64 ? 1e-13 : dtype == float32 ? 1e-6 : 0x1p-8;
    const double wanted = one.at("loss");
    // 16-bit logits have an fp32 loss.
    EXPECT_NEAR(loss.item(), wanted, (dtype == bfloat16 ? 1e-6 : tolerance) * wanted) << title;
    const auto gradient = one.at("gradient").get<LossNumbers>();
    const LossNumbers got = logits.grad().to_vector();
    ASSERT_EQ(got.size(), gradient.size()) << title;
    const double largest =
        std::abs(*std::max_element(gradient.begin(), gradient.end(),
                                   [](double a, double b) { return std::abs(a) < std::abs(b); }));
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], gradient[i], tolerance * largest) << title << " element " << i;
    }
  }
}

// Rows in several chunks have the loss and the gradient of the same rows in one call each.
TEST(Distillation, ChunksOfRowsAreLikeOne) {
  const std::int64_t rows = 7, vocabulary = 300'000;
  const std::vector<std::int64_t> targets = {3, 1, -100, 4, 1, 5, 9};
  std::vector<float> numbers(static_cast<std::size_t>(rows * vocabulary));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(i * 7919 % 10'007) / 1000.0f;
  }
  const std::vector<float> taught(numbers.rbegin(), numbers.rend());
  // The loss of rows [first, first + count), and its gradient.
  const auto of_rows = [&](std::int64_t first, std::int64_t count) {
    const auto part = [&](const std::vector<float>& all) {
      return Tensor::from(std::vector<float>(all.begin() + first * vocabulary,
                                             all.begin() + (first + count) * vocabulary),
                          {count, vocabulary});
    };
    Tensor logits = part(numbers);
    logits.set_requires_grad(true);
    const Tensor loss = distillation_loss(
        logits, part(taught),
        Tensor::from(
            std::vector<std::int64_t>(targets.begin() + first, targets.begin() + first + count),
            {count}),
        {.weight = 1});
    loss.backward();
    return std::pair(static_cast<double>(loss.item()), logits.grad().to_vector());
  };
  const auto [loss, gradient] = of_rows(0, rows);
  double expected = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto [one, wanted] = of_rows(row, 1);
    expected += one / 6;
    for (std::size_t i = 0; i < wanted.size(); i += 101) {
      const std::size_t place = static_cast<std::size_t>(row * vocabulary) + i;
      ASSERT_NEAR(gradient[place], wanted[i] / 6, 1e-10) << row << " " << i;
    }
  }
  EXPECT_NEAR(loss, expected, 1e-6 * expected);
}

// Beside both models' logits a step holds their gradient and a chunk's distributions, not several
// arrays of the size of the logits.
TEST(Distillation, KeepsTheLogitsAlone) {
  const Shape shape{4096, 4096};
  Tensor logits = Tensor::full(shape, 0.5);
  logits.set_requires_grad(true);
  const Tensor teacher = Tensor::full(shape, 0.25);
  const Tensor targets =
      Tensor::from(std::vector<std::int32_t>(static_cast<std::size_t>(shape[0]), 1), {shape[0]});
  const auto& pool = MemoryPool::current();
  pool->trim();  // cached blocks may be larger than requested
  const std::size_t before = pool->stats().in_use;
  pool->reset_peak();
  const Tensor loss = distillation_loss(logits, teacher, targets, {.weight = 1});
  EXPECT_LT(pool->stats().in_use - before, logits.bytes() / 16);
  loss.backward();
  EXPECT_LT(pool->stats().peak_in_use - before, 2 * logits.bytes());
}

TEST(Distillation, WithoutATargetThatCountsLossAndGradientAreZero) {
  Tensor logits = Tensor::full({1, 2, 3}, 0.5);
  logits.set_requires_grad(true);
  const Tensor loss =
      distillation_loss(logits, Tensor::full({1, 2, 3}, 0.25),
                        Tensor::from(std::vector<std::int32_t>{-100, -100}, {1, 2}));
  loss.backward();
  EXPECT_EQ(loss.item(), 0);
  EXPECT_EQ(logits.grad().to_vector(), LossNumbers(6, 0.0));
}

TEST(Distillation, RefusesOtherShapesAndImpossibleOptions) {
  const Tensor logits = Tensor::full({2, 3}, 1.0);
  const Tensor targets = Tensor::from(std::vector<std::int32_t>{0, 1}, {2});
  EXPECT_THROW((void)distillation_loss(logits, Tensor::full({2, 4}, 1.0), targets),
               std::logic_error);
  for (const DistillationOptions& wrong :
       {DistillationOptions{.temperature = 0}, DistillationOptions{.weight = 0},
        DistillationOptions{.weight = 1.5}}) {
    EXPECT_THROW((void)distillation_loss(logits, logits, targets, wrong), std::logic_error);
  }
}

}  // namespace
}  // namespace tessera::tasks
