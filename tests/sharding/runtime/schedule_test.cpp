// The times when units are gathered and reduced. They must not depend on forwards without a
// backward, on how often a unit is called, or on where the root is used.
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::on_ranks;
using testing::toy_batch;
using testing::toy_options;
using testing::ToyTransformer;

// Returns the same tensor; `at_backward` is called when its gradient is computed.
Tensor watched(const Tensor& x, std::function<void()> at_backward) {
  Tensor out = x.detach();
  autograd::record(Op::reshape, {x}, {out},
                   [at_backward = std::move(at_backward)](std::vector<Tensor>& dout,
                                                          autograd::GradientSink& sink) {
                     at_backward();
                     sink.add(0, dout[0]);
                   });
  return out;
}

// The collectives of a step: in the forward, in the backward up to the first block, and in total;
// and the collective memory.
struct StepProfile {
  std::uint64_t forward = 0, until_first_block = 0, backward = 0;
  std::uint64_t bytes = 0, buffer_bytes = 0, allocations = 0;
  bool operator==(const StepProfile&) const = default;
};

void PrintTo(const StepProfile& p, std::ostream* out) {
  *out << "{forward " << p.forward << ", until the first block " << p.until_first_block
       << ", backward " << p.backward << ", bytes " << p.bytes << ", buffers " << p.buffer_bytes
       << ", allocations " << p.allocations << "}";
}

StepProfile step(const Context& context, ToyTransformer& net, ShardedModel& model,
                 optim::Optimizer& optimizer) {
  const auto batch = toy_batch(context.rank(), 2);
  const auto count = [&] { return model.communication().collectives; };
  StepProfile profile;
  const std::uint64_t bytes = model.communication().bytes;
  const std::uint64_t begin = count();
  std::uint64_t forward_end = 0;
  const Tensor hidden =
      watched(net.embed(batch.ids), [&] { profile.until_first_block = count() - forward_end; });
  const Tensor loss = cross_entropy(net.head(hidden), batch.targets);
  forward_end = count();
  profile.forward = forward_end - begin;
  loss.backward();
  profile.backward = count() - forward_end;
  optimizer.step();
  optimizer.zero_grad();
  const auto statistics = model.communication();
  profile.bytes = statistics.bytes - bytes;
  profile.buffer_bytes = statistics.buffer_bytes;
  profile.allocations = statistics.allocations;
  return profile;
}

using Interruption = std::function<void(ToyTransformer&, ShardedModel&)>;

void expect_no_trace(const Interruption& interruption) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 1e-3});
      for (int i = 0; i < 2; ++i) (void)step(context, net, model, optimizer);
      const StepProfile usual = step(context, net, model, optimizer);
      interruption(net, model);
      const StepProfile after = step(context, net, model, optimizer);
      // Units that stayed gathered need no new gather; everything else is as usual, already in this
      // step.
      EXPECT_LE(after.forward, usual.forward) << testing::describe(options);
      EXPECT_EQ(after.until_first_block, usual.until_first_block) << testing::describe(options);
      EXPECT_EQ(after.backward, usual.backward) << testing::describe(options);
      EXPECT_EQ(after.buffer_bytes, usual.buffer_bytes) << testing::describe(options);
      EXPECT_EQ(after.allocations, usual.allocations) << testing::describe(options);
      EXPECT_EQ(step(context, net, model, optimizer), usual) << testing::describe(options);
    });
  }
}

TEST(ForwardWithoutBackward, LeavesNoTraceWhenItsGraphIsDropped) {
  expect_no_trace([](ToyTransformer& net, ShardedModel&) {
    const auto batch = toy_batch(7, 2);
    for (int i = 0; i < 3; ++i) (void)net.loss(batch.ids, batch.targets);
  });
}

TEST(ForwardWithoutBackward, LeavesNoTraceWhileItsGraphLives) {
  expect_no_trace([](ToyTransformer& net, ShardedModel&) {
    const auto batch = toy_batch(7, 2);
    thread_local Tensor loss;  // the thread of the rank ends with the rank
    loss = net.loss(batch.ids, batch.targets);
  });
}

TEST(ForwardWithoutBackward, LeavesNoTraceWhenAnExceptionEndsIt) {
  expect_no_trace([](ToyTransformer& net, ShardedModel&) {
    const auto batch = toy_batch(7, 2);
    (void)net.embed(batch.ids);  // as if the rest had thrown
    EXPECT_THROW((void)net.head(Tensor::zeros({2, testing::toy_length, 5})), std::logic_error);
  });
}

TEST(ForwardWithoutBackward, LeavesNoTraceOfEvaluation) {
  expect_no_trace([](ToyTransformer& net, ShardedModel&) {
    const auto batch = toy_batch(7, 3);
    const NoGradGuard no_grad;
    (void)net.loss(batch.ids, batch.targets);
  });
}

// Two graphs at once, one backward after the other: every step equals the first, in memory too.
TEST(TwoGraphs, AreReducedOneAfterTheOther) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      const std::uint64_t allocations = model.communication().allocations;
      const auto batch = toy_batch(context.rank(), 2);
      std::uint64_t reduced_on_the_way[2] = {};
      for (int i = 0; i < 3; ++i) {
        std::uint64_t begin = 0;
        const auto loss = [&](std::uint64_t& on_the_way) {
          const Tensor hidden = watched(net.embed(batch.ids), [&] {
            on_the_way = model.communication().collectives - begin;
          });
          return cross_entropy(net.head(hidden), batch.targets);
        };
        const Tensor first = loss(reduced_on_the_way[0]), second = loss(reduced_on_the_way[1]);
        begin = model.communication().collectives;
        first.backward();
        begin = model.communication().collectives;
        second.backward();
      }
      if (row_of(options.strategy).reduce == ReduceAt::unit_backward) {
        EXPECT_GE(reduced_on_the_way[0], 2u) << testing::describe(options);
        EXPECT_GE(reduced_on_the_way[1], 2u) << testing::describe(options);
      }
      EXPECT_EQ(model.communication().allocations, allocations) << testing::describe(options);
    });
  }
}

// Layers in the order of `path`; 0 is a parameter of the root.
class Path : public nn::Module {
 public:
  explicit Path(std::vector<int> path) : path_(std::move(path)) {
    register_parameter("scale", nn::make_parameter({6}, nn::constant(0.5)));
    for (const char* name : {"a", "b", "c"}) {
      layers_.push_back(register_module(name, nn::Linear(6, 6)));
    }
  }
  Tensor forward(Tensor x, const std::function<void(std::size_t)>& before = {}) const {
    for (std::size_t i = 0; i < path_.size(); ++i) {
      if (before) before(i);
      const int layer = path_[i];
      x = layer == 0 ? x * parameter("scale") : layers_[static_cast<std::size_t>(layer - 1)](x);
    }
    return sum(x);
  }

 private:
  std::vector<int> path_;
  std::vector<nn::Linear> layers_;
};

struct PathStep {
  std::vector<std::uint64_t> before;  // gathers before each place of the forward
  std::uint64_t forward = 0, backward = 0;
};

// A step after two others.
PathStep step_of_path(const std::vector<int>& path) {
  PathStep result;
  launch(2, [&](Context& context) {
    manual_seed(3);
    Path net(path);
    ShardedModel model = fully_shard(net, context, {.wrap = WrapPolicy::list({"a", "b", "c"})});
    optim::Sgd optimizer(model.parameters(), {.lr = 1e-3});
    const Tensor x = Tensor::full({2, 6}, context.rank() + 1.0);
    const std::uint64_t allocations = model.communication().allocations;
    for (int i = 0; i < 3; ++i) {
      PathStep mine;
      const std::uint64_t begin = model.communication().collectives;
      const auto so_far = [&] { return model.communication().collectives - begin; };
      const Tensor loss = net.forward(x, [&](std::size_t) { mine.before.push_back(so_far()); });
      mine.forward = so_far();
      loss.backward();
      mine.backward = so_far() - mine.forward;
      optimizer.step();
      optimizer.zero_grad();
      if (context.is_main()) result = mine;
    }
    EXPECT_EQ(model.communication().allocations, allocations);
  });
  return result;
}

using Counts = std::vector<std::uint64_t>;

// When a call begins, the next call's unit is gathered; the last unit stays gathered for the
// backward, which then gathers the others again and reduces.
TEST(Calls, AUnitThatIsCalledTwiceIsGatheredForEachCall) {
  const PathStep got = step_of_path({1, 2, 1, 3});
  EXPECT_EQ(got.before, (Counts{0, 2, 3, 4}));
  EXPECT_EQ(got.forward, 4u);
  EXPECT_EQ(got.backward, 3u + 3);
}

TEST(Calls, AUnitThatIsCalledAgainAtOnceStaysGathered) {
  const PathStep got = step_of_path({1, 1, 2, 2});
  EXPECT_EQ(got.before, (Counts{0, 1, 2, 2}));
  EXPECT_EQ(got.forward, 2u);
  EXPECT_EQ(got.backward, 1u + 2);
}

// A root that is used last is gathered while the unit before it runs, and no unit is gathered after
// it that the backward does not need.
TEST(Calls, ALateRootIsPrefetched) {
  const PathStep got = step_of_path({1, 2, 3, 0});
  EXPECT_EQ(got.before, (Counts{0, 2, 3, 4}));
  EXPECT_EQ(got.forward, 4u);
  EXPECT_EQ(got.backward, 2u + 4);
}

TEST(Calls, AnEarlyRootPrefetchesTheFirstUnit) {
  const PathStep got = step_of_path({0, 1, 2});
  EXPECT_EQ(got.before, (Counts{0, 2, 3}));
  EXPECT_EQ(got.forward, 3u);
  EXPECT_EQ(got.backward, 1u + 3);
}

// A module that a backward recomputes is not a new forward: the order is kept, and the unit is
// still gathered when its own backward runs.
TEST(Calls, AForwardInsideABackwardChangesNoOrder) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [](Context& context, ToyTransformer& net, ShardedModel& model) {
             optim::Sgd optimizer(model.parameters(), {.lr = 1e-3});
             for (int i = 0; i < 2; ++i) (void)step(context, net, model, optimizer);
             const StepProfile usual = step(context, net, model, optimizer);
             const auto batch = toy_batch(context.rank(), 2);
             const Tensor hidden = net.embed(batch.ids);
             const std::vector<double> values = hidden.to_vector();
             const Tensor again = watched(hidden, [&] {
               const NoGradGuard no_grad;
               EXPECT_EQ(net.embed(batch.ids).to_vector(), values);
             });
             cross_entropy(net.head(again), batch.targets).backward();
             optimizer.step();
             optimizer.zero_grad();
             EXPECT_EQ(step(context, net, model, optimizer), usual);
           });
}

}  // namespace
}  // namespace tessera
