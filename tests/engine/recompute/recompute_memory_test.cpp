// The tensors that a recomputed function keeps, and the ops that its second run computes.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "engine/autograd.h"
#include "engine/device/memory.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "engine/recompute.h"
#include "support/gradient_check.h"
#include "support/one_thread.h"

namespace tessera {
namespace {

constexpr std::int64_t memory_rows = 64;
constexpr std::int64_t columns = 256;
constexpr std::size_t one_tensor = memory_rows * columns * sizeof(float);

Tensor wide_leaf() {
  return cast(testing::values({memory_rows, columns}, 1), float32).set_requires_grad(true);
}

// `ops` functions, each of which saves its input.
Tensor chain_of(int ops, Tensor x) {
  for (int i = 0; i < ops; ++i) x = tanh(x);
  return x;
}

std::size_t bytes_in_use() {
  return MemoryPool::current()->stats().in_use;
}

// n functions of k ops keep n inputs; during backward there are also the saved tensors of one
// function, and two gradients.
TEST(RecomputeMemory, HoldsOneTensorPerFunctionAndTheInsideOfOne) {
  const testing::OneThread one_thread;
  const Tensor x = wide_leaf();
  x.backward(Tensor::full({memory_rows, columns}, 1));  // allocates the leaf's gradient
  for (const int functions : {2, 6}) {
    for (const int ops : {3, 8}) {
      const auto pool = MemoryPool::current();
      const std::size_t before = bytes_in_use();
      Tensor y = x;
      for (int i = 0; i < functions; ++i) {
        y = recompute([ops](Tensor in) { return chain_of(ops, std::move(in)); }, y);
      }
      const Tensor loss = sum(y);
      y = {};
      // x belongs to the caller, and sum() keeps nothing: each later input is the result of a
      // function.
      const auto held = static_cast<std::size_t>(functions - 1);
      EXPECT_NEAR(static_cast<double>(bytes_in_use() - before), held * one_tensor, 1000);
      pool->reset_peak();
      loss.backward();
      // In the last function: its ops save its input and k - 1 more values, and a gradient passes
      // through each of them into another.
      const std::size_t inside = static_cast<std::size_t>(ops - 1 + 2);
      EXPECT_LE(pool->stats().peak_in_use - before, (held + inside) * one_tensor + 1000);
      EXPECT_GE(pool->stats().peak_in_use - before, (held + inside - 1) * one_tensor);
      EXPECT_NEAR(static_cast<double>(bytes_in_use()), static_cast<double>(before), 1000);
    }
  }
}

TEST(RecomputeMemory, ADroppedGraphFreesItsInputs) {
  const testing::OneThread one_thread;
  const Tensor x = wide_leaf();
  const std::size_t before = bytes_in_use();
  {
    Tensor y = x;
    for (int i = 0; i < 4; ++i) y = recompute([](const Tensor& in) { return chain_of(3, in); }, y);
    EXPECT_GE(bytes_in_use() - before, 4 * one_tensor);
  }
  EXPECT_EQ(bytes_in_use(), before);
}

TEST(RecomputeMemory, LongChainsNeedNoDeepStack) {
  const testing::OneThread one_thread;
  const Tensor x = testing::leaf({1}, 1, 0.5, 1.0);
  const auto chain = [&] {
    Tensor y = x;
    for (int i = 0; i < 20'000; ++i) y = recompute([](const Tensor& in) { return relu(in); }, y);
    return sum(y);
  };
  (void)chain();  // dropped without a backward
  chain().backward();
  EXPECT_EQ(x.grad().to_vector(), (std::vector<double>{1}));
}

// An op that counts its computations. Its result can be kept like that of linear.
struct Counted {
  Tensor operator()(const Tensor& x, autograd::Reads reads) const {
    Tensor out;
    autograd::compute_or_take(Op::linear, {&out}, [&] {
      out = Tensor::empty(x.shape(), x.dtype());
      if (!autograd::value_is_needed()) return;
      ++*computed;
      std::memcpy(out.data(), x.data(), x.bytes());
    });
    autograd::record(
        Op::linear, {x}, {out},
        [](std::vector<Tensor>& dout, autograd::GradientSink& sink) { sink.add(0, dout[0]); },
        reads);
    return out;
  }
  std::shared_ptr<int> computed = std::make_shared<int>(0);
};

int second_runs(const std::function<Tensor(const Counted&, const Tensor&)>& fn,
                const RecomputeOptions& options = {}) {
  const Counted counted;
  const Tensor x = testing::leaf({3}, 1);
  const Tensor y = recompute(
      options, [&](const Tensor& in) { return fn(counted, in); }, x);
  const int first = *counted.computed;
  testing::weighted_sum(y).backward();
  return *counted.computed - first;
}

// The last product and sum of a layer are its result: no backward reads them.
TEST(RecomputeMemory, ResultsThatNoBackwardReadsAreNotRecomputed) {
  using autograd::Reads;
  EXPECT_EQ(second_runs([](const Counted& op, const Tensor& x) {
              return x + op(op(op(x, Reads::inputs), Reads::inputs), Reads::inputs);
            }),
            2);  // all but the last
  EXPECT_EQ(second_runs([](const Counted& op, const Tensor& x) {
              return op(op(tanh(op(x, Reads::nothing)), Reads::nothing), Reads::nothing) + x;
            }),
            1);  // tanh reads the first
  EXPECT_EQ(second_runs([](const Counted& op, const Tensor& x) {
              return op(op(x, Reads::anything), Reads::anything);
            }),
            2);
}

TEST(RecomputeMemory, ResultsThatAreReadOutsideBackwardAreRecomputed) {
  using autograd::Reads;
  EXPECT_EQ(second_runs([](const Counted& op, const Tensor& x) {
              const Tensor y = op(op(x, Reads::nothing), Reads::nothing);
              return sum(y).item() > 100 ? y : y * 2.0;
            }),
            2);
  EXPECT_EQ(second_runs([](const Counted& op, const Tensor& x) {
              const Tensor y = op(op(x, Reads::nothing), Reads::nothing);
              return y * exp(y.detach());
            }),
            2);
}

TEST(RecomputeMemory, KeptResultsAreNotRecomputed) {
  using autograd::Reads;
  const auto fn = [](const Counted& op, const Tensor& x) {
    return tanh(op(tanh(op(x, Reads::inputs)), Reads::inputs));
  };
  EXPECT_EQ(second_runs(fn), 2);
  EXPECT_EQ(second_runs(fn, {.keep = {Op::linear}}), 0);
  EXPECT_EQ(second_runs(fn, {.keep = {Op::attention}}), 2);
}

TEST(RecomputeMemory, KeptResultsCostMemoryAndGiveTheSameBits) {
  const testing::OneThread one_thread;
  const Tensor qkv = cast(testing::values({2, 16, 3 * 48}, 1), float32).set_requires_grad(true);
  const Tensor weight = cast(testing::values({48, 48}, 2), float32).set_requires_grad(true);
  const auto layer = [&](const Tensor& x) {
    return tanh(linear(packed_attention(x, {.heads = 4, .causal = true, .dropout = 0.1}), weight));
  };
  manual_seed(2);
  const auto run = [&](const std::function<Tensor()>& forward) {
    begin_batch({.step = 1, .first_sample = 0, .samples = 2});
    const std::size_t before = bytes_in_use();
    Tensor y = forward();
    const std::size_t kept = bytes_in_use() - before - y.bytes();
    testing::weighted_sum(cast(y, float64)).backward();
    std::vector<double> all = qkv.grad().to_vector();
    for (const double value : weight.grad().to_vector()) all.push_back(value);
    Tensor(qkv).zero_grad();
    Tensor(weight).zero_grad();
    return std::pair(all, kept);
  };
  const auto expected = run([&] { return layer(qkv); }).first;
  constexpr std::size_t out = 2 * 16 * 48 * sizeof(float);
  constexpr std::size_t log_sums = 2 * 4 * 16 * sizeof(float);
  const auto none = run([&] { return recompute(layer, qkv); });
  EXPECT_EQ(none.first, expected);
  EXPECT_EQ(none.second, 0u);
  const auto attention = run([&] { return recompute({.keep = ops_worth_keeping}, layer, qkv); });
  EXPECT_EQ(attention.first, expected);
  EXPECT_EQ(attention.second, out + log_sums);
  const auto both = run([&] {
    return recompute({.keep = {Op::packed_attention, Op::linear}}, layer, qkv);
  });
  EXPECT_EQ(both.first, expected);
  EXPECT_EQ(both.second, 2 * out + log_sums);
}

}  // namespace
}  // namespace tessera
