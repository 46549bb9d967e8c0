// Compares a plan with a run: the same figures for each kind, computed without memory and peers.
#include "sharding/plan/plan.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/device/memory.h"
#include "sharding/memory/layouts.h"
#include "sharding/plan/planned_toy.h"
#include "sharding/sharding_testing.h"
#include "support/processor_time.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::exact_kinds;
using testing::Measured;
using testing::plan_options;
using testing::plan_toy;
using testing::PlannedCase;
using testing::run_toy;
using testing::toy_batch;
using testing::ToyTransformer;

std::vector<PlannedCase> cases_of(int world) {
  std::vector<PlannedCase> cases;
  for (ShardingOptions sharding : all_strategies(world)) {
    for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
      sharding.param_dtype = dtype;
      cases.push_back({.sharding = sharding});
      cases.push_back({.sharding = sharding, .micro_batches = 3, .sync_each_batch = false});
      if (sharding.group_size < 2) continue;
      cases.push_back({.sharding = sharding, .micro_batches = 3});
      cases.back().sharding.defer_replica_sums = true;
    }
    sharding.param_dtype = float16;
    sharding.keep_fp32 = {"LayerNorm"};
    sharding.gather_wire = WireFormat::fp8_e4m3;
    sharding.reduce_wire = WireFormat::int8;
    cases.push_back({.sharding = sharding});
  }
  return cases;
}

std::string describe(int world, const PlannedCase& what) {
  return testing::describe(what.sharding) + " on " + std::to_string(world) + ", " +
         (what.sharding.param_dtype ? "bf16, " : "fp32, ") + std::to_string(what.micro_batches) +
         " batches";
}

// To the byte in the four kinds, and in the total and the cached bytes, since the pool does the
// same.
TEST(MemoryPlan, MatchesTheRanks) {
  for (const int world : {1, 2, 3, 4}) {
    for (const PlannedCase& what : cases_of(world)) {
      const std::string text = describe(world, what);
      const MemoryPlan planned = plan_toy(world, what);
      const Measured measured = run_toy(world, what).front();
      for (const MemoryKind kind : exact_kinds) {
        EXPECT_EQ(planned.memory.of(kind), measured.memory.of(kind)) << text << name_of(kind);
      }
      EXPECT_EQ(planned.memory.of(MemoryKind::activations),
                measured.memory.of(MemoryKind::activations))
          << text;
      EXPECT_EQ(planned.total(), measured.memory.total()) << text;
      EXPECT_EQ(planned.memory.cached, measured.memory.cached) << text;
      EXPECT_EQ(planned.memory.placed, measured.memory.placed) << text;
      EXPECT_EQ(planned.memory.step_placed, measured.memory.step_placed) << text;
      EXPECT_GT(planned.memory.step_live, 0u) << text;
      EXPECT_LE(static_cast<double>(planned.memory.step_placed),
                1.03 * static_cast<double>(planned.memory.step_live))
          << text;
      EXPECT_EQ(planned.moved_bytes(), measured.moved) << text;
    }
  }
}

// One rank is enough for a plan: the others differ only by the gaps between parameters.
TEST(MemoryPlan, RanksDifferByPadding) {
  ToyTransformer net;
  const std::size_t gaps = net.named_parameters().size() * 31 * 2 * sizeof(float);
  for (const int world : {2, 3, 4}) {
    for (const ShardingOptions& sharding : all_strategies(world)) {
      const auto ranks = run_toy(world, {.sharding = sharding});
      for (const Measured& rank : ranks) {
        for (const MemoryKind kind : exact_kinds) {
          EXPECT_LE(rank.memory.of(kind), ranks.front().memory.of(kind) + gaps)
              << testing::describe(sharding) << " on " << world << ": " << name_of(kind);
        }
      }
    }
  }
}

// Planning does not change the caller's thread (generator, default device, pools), nor the module.
TEST(MemoryPlan, DoesNotChangeTheCaller) {
  manual_seed(11);
  ToyTransformer net;
  const auto weights = net.named_parameters();
  const auto values = weights.front().tensor.to_vector();
  const MemoryStats before = MemoryPool::current()->stats();
  const PlannedCase what{.sharding = testing::toy_options(Strategy::full_shard)};
  const MemoryPlan first = plan(net, {.ranks = 4}, plan_options(what, net));
  EXPECT_EQ(MemoryPool::current()->stats().in_use, before.in_use);
  EXPECT_EQ(default_device(), Device::cpu());
  EXPECT_EQ(next_parameter_stream(), weights.size());
  const auto after = net.named_parameters();
  ASSERT_EQ(after.size(), weights.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].tensor.impl(), weights[i].tensor.impl()) << after[i].name;
  }
  EXPECT_EQ(after.front().tensor.to_vector(), values);
  const auto batch = toy_batch(0, 2);
  net.loss(batch.ids, batch.targets).backward();  // it trains as before
  // A second plan is the same.
  const MemoryPlan second = plan(net, {.ranks = 4}, plan_options(what, net));
  EXPECT_EQ(second.total(), first.total());
  EXPECT_EQ(second.moved_bytes(), first.moved_bytes());
}

// A head over another module's table.
class TableReaderImpl : public nn::Module {
 public:
  explicit TableReaderImpl(nn::Embedding table) : table_(std::move(table)) {
    reads_parameter(table_->weight());
  }
  Tensor forward(const Tensor& x) const { return linear(x, table_->weight()); }

 private:
  nn::Embedding table_;  // registered by another
};
TESSERA_MODULE(TableReader);

class NetWithReader : public nn::Module {
 public:
  NetWithReader() {
    table_ = register_module("table", nn::Embedding(testing::toy_vocabulary, testing::toy_width));
    head_ = register_module("head", TableReader(table_));
  }
  [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& targets) const {
    return cross_entropy(head_(table_(ids)), targets);
  }

 private:
  nn::Embedding table_;
  TableReader head_;
};

// The module's declaration (which parameters it reads) is still valid for the sharding that
// follows.
TEST(MemoryPlan, LeavesTheParametersThatModulesRead) {
  NetWithReader net;
  const ShardingOptions options{.strategy = Strategy::full_shard,
                                .wrap = WrapPolicy::list({"table", "head"})};
  const auto loss = [&net](Device device) {
    const auto batch = toy_batch(0, 2);
    return net.loss(batch.ids.to(device), batch.targets.to(device));
  };
  (void)plan(net, {.ranks = 2}, {.sharding = options, .loss = loss});
  const auto head = net.children().back().second;
  ASSERT_EQ(head->parameters_read().size(), 1u);
  EXPECT_EQ(head->parameters_read().front().impl(), net.named_parameters().front().tensor.impl());
  launch(2, [&](Context& context) {
    NetWithReader mine;
    const auto own_loss = [&mine](Device device) {
      const auto batch = toy_batch(0, 2);
      return mine.loss(batch.ids.to(device), batch.targets.to(device));
    };
    (void)plan(mine, {.ranks = 2}, {.sharding = options, .loss = own_loss});
    const ShardedModel model = fully_shard(mine, context, options);
    own_loss(Device::cpu()).backward();
  });
}

// A pool that was short of memory has returned memory that it held at the peak.
TEST(MemoryPlan, MemoryFreedSinceThePeakIsNotCached) {
  launch(1, [](Context& context) {
    const auto pool = MemoryPool::current();
    const Tensor kept = Tensor::zeros({1000}, float32);
    (void)Tensor::zeros({1'000'000}, float32);
    pool->trim();
    const MemoryStats stats = pool->stats();
    ASSERT_LT(stats.reserved, stats.peak_in_use);
    EXPECT_EQ(measure_memory(context).cached, 0u);
  });
}

// Gathered parameters exist once per host, or once on every GPU.
TEST(MemoryPlan, CountsTheRanksPartOfSharedBuffers) {
  const PlannedCase what{.sharding = testing::toy_options(Strategy::shard_grad_op)};
  constexpr int world = 4;
  ToyTransformer net;
  std::size_t gathered = 0;
  for (const auto& unit : testing::expected_units(net, what.sharding.wrap)) {
    gathered += unit.layout(world).bytes();
  }
  const auto communication = [&](std::optional<bool> one_memory) {
    const DeviceGuard deferred(Device::meta());
    ToyTransformer planned;
    return plan(planned, {.ranks = world, .one_memory = one_memory}, plan_options(what, planned))
        .memory.of(MemoryKind::communication);
  };
  const std::size_t shared = communication(true);
  const std::size_t own = communication(false);
  // In addition, ranks with separate memories have scratch for sums, as large as the largest shard
  // of gradients.
  std::size_t scratch = 0;
  for (const auto& unit : testing::expected_units(net, what.sharding.wrap)) {
    const UnitLayout layout = unit.layout(world);
    scratch = std::max(scratch, static_cast<std::size_t>(layout.local(0, 0).count) * 4);
  }
  EXPECT_EQ(own - shared,
            gathered - gathered / world + testing::round_up<std::size_t>(scratch, 256));
}

// Needs a lot of memory for a short time.
class HungryImpl : public nn::Module {
 public:
  explicit HungryImpl(std::int64_t elements) : elements_(elements) {
    linear_ = register_module("linear", nn::Linear(8, 8));
  }
  Tensor forward(const Tensor& x) const {
    (void)Tensor::zeros({elements_}, float32, x.device());
    return linear_(x);
  }

 private:
  std::int64_t elements_;
  nn::Linear linear_;
};
TESSERA_MODULE(Hungry);

class HungryNet : public nn::Module {
 public:
  explicit HungryNet(std::int64_t elements) {
    first_ = register_module("first", Hungry(elements));
    second_ = register_module("second", Hungry(2 * elements));
    third_ = register_module("third", Hungry(elements));
  }
  [[nodiscard]] Tensor forward(const Tensor& x) const { return third_(second_(first_(x))); }

 private:
  Hungry first_, second_, third_;
};

TEST(MemoryPlan, ReportsTheTimeOfThePeak) {
  const DeviceGuard deferred(Device::meta());
  HungryNet net(1 << 20);
  PlanOptions options;
  options.sharding.wrap = WrapPolicy::transformer({"Hungry"});
  const auto forward = [&net](Device device) {
    return net.forward(Tensor::zeros({4, 8}, float32, device));
  };
  options.loss = [&](Device device) { return sum(forward(device)); };
  const MemoryPlan in_forward = plan(net, {.ranks = 2}, options);
  EXPECT_EQ(in_forward.unit, "second");
  EXPECT_EQ(in_forward.phase, "forward");
  // The gradient of the loss's input: before the backward reaches any unit.
  options.loss = [&](Device device) {
    const Tensor large = Tensor::zeros({1 << 22}, float32, device).set_requires_grad(true);
    return sum(forward(device)) + sum(large * large);
  };
  const MemoryPlan in_loss = plan(net, {.ranks = 2}, options);
  EXPECT_EQ(in_loss.unit, "");
  EXPECT_EQ(in_loss.phase, "backward");
}

// A rank's shard shrinks with the world; planning for 65,536 ranks takes no more time.
TEST(MemoryPlan, TakesAnyWorld) {
  std::size_t previous = 0;
  for (const int world : {1, 2, 7, 64, 4096, most_planned_ranks}) {
    PlannedCase what{.sharding = testing::toy_options(Strategy::full_shard)};
    const double before = testing::own_processor_seconds();
    const MemoryPlan planned = plan_toy(world, what, DeviceType::cuda);
    EXPECT_LT(testing::own_processor_seconds() - before, 5) << world;
    const std::size_t state = planned.memory.of(MemoryKind::parameters);
    if (previous != 0) {
      EXPECT_LE(state, previous) << world;
    }
    previous = state;
  }
  EXPECT_GT(previous, 0u);
}

TEST(MemoryPlan, RefusesInvalidOptions) {
  const PlannedCase what{.sharding = testing::toy_options(Strategy::full_shard)};
  for (const int ranks : {0, -1, most_planned_ranks + 1}) {
    const auto text = testing::message_of<Error>([&] { (void)plan_toy(ranks, what); });
    EXPECT_NE(text.find(std::to_string(ranks) + " ranks"), std::string::npos) << text;
  }
  const auto text = testing::message_of<Error>(
      [&] { (void)plan_toy(6, {.sharding = testing::toy_options(Strategy::hybrid_shard, 4)}); });
  EXPECT_NE(text.find("group_size that divides the world of 6 ranks, got 4"), std::string::npos);
  const auto nothing =
      testing::message_of<std::logic_error>([] { (void)plan({.ranks = 2}, [](Planning&) {}); });
  EXPECT_NE(nothing.find("end_step()"), std::string::npos) << nothing;
}

// An exception of the program reaches the caller, and the next plan is not affected.
TEST(MemoryPlan, PassesErrorsOn) {
  const PlannedCase what{.sharding = testing::toy_options(Strategy::full_shard)};
  const DeviceGuard deferred(Device::meta());
  ToyTransformer net;
  PlanOptions options = plan_options(what, net);
  const auto loss = options.loss;
  options.loss = [&](Device device) -> Tensor {
    (void)loss(device);
    fail(ErrorCode::data, "the batch is bad");
  };
  const auto text = testing::message_of<Error>([&] { (void)plan(net, {.ranks = 2}, options); });
  EXPECT_EQ(text, "the batch is bad");
  options.loss = loss;
  EXPECT_EQ(plan(net, {.ranks = 2}, options).total(), plan_toy(2, what).total());
}

}  // namespace
}  // namespace tessera
