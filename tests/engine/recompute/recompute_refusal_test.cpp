// Operations that recomputed functions must not do, and that the thread's state is restored after
// an error.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "engine/recompute.h"
#include "support/errors.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

// The engine is usable as before: gradients are on, no function runs, the generator has its old
// state.
void expect_usable(const GeneratorState& generator) {
  EXPECT_TRUE(grad_enabled());
  EXPECT_FALSE(autograd::in_backward());
  EXPECT_TRUE(detail::recompute_applies());
  EXPECT_EQ(current_module_call(), nullptr);
  EXPECT_EQ(generator_state(), generator);
  const Tensor x = testing::leaf({2}, 1);
  recompute([](const Tensor& in) { return sum(in * 5.0); }, x).backward();
  EXPECT_EQ(x.grad().to_vector(), (std::vector<double>{5, 5}));
}

class RecomputeRefuses : public ::testing::Test {
 protected:
  const Tensor x_ = testing::leaf({2, 2}, 1);
  int run_ = 0;
};

TEST_F(RecomputeRefuses, AnotherSequenceOfOpsTheSecondTime) {
  const GeneratorState generator = generator_state();
  const auto differs = [&](auto second) {
    run_ = 0;
    const Tensor y = recompute(
        [&, second](const Tensor& x) { return run_++ == 0 ? tanh(x * 2.0) : Tensor(second(x)); },
        x_);
    return testing::misuse_of([&] { sum(y).backward(); });
  };
  EXPECT_NE(differs([](const Tensor& x) { return x * 2.0; }).find("does less"), std::string::npos);
  EXPECT_NE(differs([](const Tensor& x) { return tanh(x + x); }).find("takes other steps"),
            std::string::npos);
  EXPECT_NE(differs([](const Tensor& x) { return tanh(x * 2.0) * 2.0; }).find("takes other steps"),
            std::string::npos);
  expect_usable(generator);
}

TEST_F(RecomputeRefuses, OtherRandomNumbersTheSecondTime) {
  const nn::Dropout dropout(0.5);
  const Tensor y = recompute(
      [&](const Tensor& x) { return x * 2.0 + (run_++ == 0 ? dropout(x) : dropout(x)); }, x_);
  dropout->eval();
  EXPECT_NE(testing::misuse_of([&] { sum(y).backward(); }).find("train() or eval()"),
            std::string::npos);
}

// A tensor of the first run belongs to a graph that no backward will pass through any more.
TEST_F(RecomputeRefuses, ATensorOfTheFirstRunInTheSecond) {
  Tensor made;
  const Tensor y = recompute(
      [&](const Tensor& x) {
        const Tensor h = tanh(x);
        if (!made) made = h;
        return made * 2.0;
      },
      x_);
  EXPECT_NE(testing::misuse_of([&] { sum(y).backward(); }).find("uses another tensor"),
            std::string::npos);
}

TEST_F(RecomputeRefuses, BackwardInsideAndASecondBackward) {
  const GeneratorState generator = generator_state();
  EXPECT_NE(testing::misuse_of([&] {
              recompute([](const Tensor& x) { sum(x * 2.0).backward(); }, x_);
            }).find("that backward will run again"),
            std::string::npos);
  const auto [a, b] =
      recompute([](const Tensor& x) { return std::pair(sum(x * 2.0), sum(x * 3.0)); }, x_);
  a.backward();
  EXPECT_NE(testing::misuse_of([&a = a] { a.backward(); }).find("a second time"),
            std::string::npos);
  EXPECT_NE(testing::misuse_of([&b = b] { b.backward(); }).find("a second time"),
            std::string::npos);
  expect_usable(generator);
}

TEST_F(RecomputeRefuses, ResultsThatCannotBeKept) {
  EXPECT_NE(testing::misuse_of([&] {
              recompute(
                  {.keep = {Op::norm}}, [](const Tensor& x) { return tanh(x); }, x_);
            }).find("norm cannot be kept"),
            std::string::npos);
}

TEST_F(RecomputeRefuses, NothingAfterAnExceptionInEitherRun) {
  const GeneratorState generator = generator_state();
  for (const int failing : {0, 1}) {
    run_ = 0;
    const auto fn = [&, failing](const Tensor& x) {
      const Tensor y = dropout(tanh(x), 0.5);
      if (run_++ == failing) throw std::runtime_error("stop");
      return y;
    };
    EXPECT_THROW(sum(recompute(fn, x_)).backward(), std::runtime_error);
    set_generator_state(generator);
    expect_usable(generator);
  }
  // A function inside a function.
  run_ = 0;
  const auto inner = [&](const Tensor& x) {
    if (run_++ == 2) throw std::runtime_error("stop");
    return tanh(x);
  };
  const auto outer = [&](const Tensor& x) { return recompute(inner, x) * 2.0; };
  EXPECT_THROW(sum(recompute(outer, x_)).backward(), std::runtime_error);
  EXPECT_EQ(run_, 3);
  expect_usable(generator);
}

}  // namespace
}  // namespace tessera
