// HYBRID with ShardingOptions::defer_replica_sums: gradients are summed between groups once a step.
// The order of the sums, the bytes between groups, the memory, and calls that would lose sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "sharding/memory/layouts.h"
#include "sharding/plan/planned_toy.h"
#include "sharding/sharding_testing.h"

namespace tessera::testing {
namespace {

constexpr auto deferred_refusal = "wait for their sum between groups";

ShardingOptions deferring(Strategy strategy, int group) {
  ShardingOptions options = toy_options(strategy, group);
  options.defer_replica_sums = true;
  return options;
}

std::vector<ShardingOptions> all_deferring() {
  return {deferring(Strategy::hybrid_shard, 2), deferring(Strategy::hybrid_shard_zero2, 2)};
}

ToyBatch batch_of(int rank, int micro) {
  return toy_batch(rank * 10 + micro, 2);
}

// The gradients of one rank's micro-batch, by names of parameters.
using Gradients = std::map<std::string, std::vector<float>>;

Gradients gradients_of(int rank, int micro) {
  const OneThread one_thread;
  manual_seed(3);
  ToyTransformer net;
  const ToyBatch batch = batch_of(rank, micro);
  net.loss(batch.ids, batch.targets).backward();
  Gradients gradients;
  for (const nn::NamedParameter& parameter : net.named_parameters()) {
    for (const double value : parameter.tensor.grad().to_vector()) {
      gradients[parameter.name].push_back(static_cast<float>(value));
    }
  }
  return gradients;
}

void add(Gradients& sums, const Gradients& more) {
  for (const auto& [name, values] : more) {
    std::vector<float>& sum = sums[name];
    if (sum.empty()) sum.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
}

// The documented order: within each group over its ranks, in each group over the micro-batches,
// and then over the groups.
Gradients sums_in_order(int groups, int ranks_of_group, int micro_batches) {
  Gradients all;
  for (int group = 0; group < groups; ++group) {
    Gradients of_group;
    for (int micro = 0; micro < micro_batches; ++micro) {
      Gradients once;
      for (int rank = 0; rank < ranks_of_group; ++rank) {
        add(once, gradients_of(group * ranks_of_group + rank, micro));
      }
      add(of_group, once);
    }
    add(all, of_group);
  }
  for (auto& [name, values] : all) {
    for (float& value : values) value /= static_cast<float>(groups * ranks_of_group);
  }
  return all;
}

TEST(DeferredSums, AreAddedWithinTheGroupThenOverMicroBatchesThenOverGroups) {
  for (const int micro_batches : {1, 3}) {
    const Gradients expected = sums_in_order(2, 2, micro_batches);
    for (const ShardingOptions& options : all_deferring()) {
      on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
        for (int round = 0; round < 2; ++round) {
          for (int micro = 0; micro < micro_batches; ++micro) {
            model.set_requires_all_reduce(micro + 1 == micro_batches);
            const ToyBatch batch = batch_of(context.rank(), micro);
            net.loss(batch.ids, batch.targets).backward();
          }
          for (const ShardedParameter& part : model.sharded_parameters()) {
            const std::vector<double> mine = part.local.grad().to_vector();
            const std::vector<float>& whole = expected.at(part.name);
            for (std::size_t i = 0; i < mine.size(); ++i) {
              ASSERT_EQ(mine[i], whole.at(static_cast<std::size_t>(part.first) + i))
                  << part.name << ' ' << i << ' ' << testing::describe(options);
            }
          }
          for (const nn::NamedParameter& parameter : model.parameters()) {
            Tensor(parameter.tensor).zero_grad();
          }
        }
      });
    }
  }
}

// Whatever the strategy, the schedule and the precision: the order is the same.
TEST(DeferredSums, GiveTheSameBitsInEverySchedule) {
  for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
    const TrainingCase what{.dropout = 0.1, .micro_batches = 3, .max_norm = 0.5};
    std::optional<Trajectory> first;
    for (ShardingOptions options : all_deferring()) {
      options.param_dtype = dtype;
      for (const BackwardPrefetch prefetch : {BackwardPrefetch::none, BackwardPrefetch::pre}) {
        options.backward_prefetch = prefetch;
        options.forward_prefetch = prefetch == BackwardPrefetch::pre;
        const Trajectory got = train_toy(4, options, what);
        if (!first) first = got;
        EXPECT_TRUE(same_bits(*first, got)) << testing::describe(options);
      }
    }
    // The order differs from that of sums after each micro-batch, and from nothing else.
    ShardingOptions at_once = toy_options(Strategy::hybrid_shard, 2);
    at_once.param_dtype = dtype;
    const Trajectory plain = train_toy(4, at_once, what);
    ASSERT_EQ(plain.norms.size(), first->norms.size());
    for (std::size_t i = 0; i < plain.norms.size(); ++i) {
      EXPECT_NEAR(plain.norms[i], first->norms[i], (dtype ? 1e-2 : 1e-5) * plain.norms[i]);
    }
    // With one micro-batch there is nothing to defer.
    for (ShardingOptions options : all_deferring()) {
      options.param_dtype = dtype;
      EXPECT_TRUE(same_bits(train_toy(4, at_once), train_toy(4, options)));
    }
  }
}

TEST(DeferredSums, ChangeNothingInASingleGroup) {
  const TrainingCase what{.micro_batches = 3};
  for (const ShardingOptions& options :
       {deferring(Strategy::hybrid_shard, 4), deferring(Strategy::hybrid_shard_zero2, 4)}) {
    EXPECT_TRUE(same_bits(train_toy(4, toy_options(Strategy::full_shard), what),
                          train_toy(4, options, what)));
  }
}

// As planned, and as planned is as run: tests/sharding/plan/plan_test.
TEST(DeferredSums, DivideTheBytesBetweenGroupsByTheMicroBatches) {
  constexpr int micro_batches = 4;
  for (const ShardingOptions& options : all_deferring()) {
    ShardingOptions plain = options;
    plain.defer_replica_sums = false;
    const auto between_groups = [](const ShardingOptions& sharding, int batches) {
      const MemoryPlan planned = plan_toy(8, {.sharding = sharding, .micro_batches = batches});
      PlannedCollective found;
      for (const PlannedCollective& collective : planned.collectives) {
        if (collective.op != "all_reduce") continue;
        EXPECT_EQ(collective.ranks, 4);
        found.calls += collective.calls;
        found.bytes += collective.bytes;
      }
      return found;
    };
    const PlannedCollective once = between_groups(plain, 1);
    const PlannedCollective each = between_groups(plain, micro_batches);
    const PlannedCollective deferred = between_groups(options, micro_batches);
    EXPECT_EQ(once.calls, 4u);  // of the units
    EXPECT_GT(once.bytes, 0u);
    EXPECT_EQ(each.bytes, micro_batches * once.bytes);
    EXPECT_EQ(deferred.bytes, once.bytes);
    EXPECT_EQ(deferred.calls, once.calls);
  }
}

// Each unit has its sums, in place of two that units use in turn.
TEST(DeferredSums, HaveTheMemoryOfTheGradientShards) {
  for (const ShardingOptions& options : all_deferring()) {
    ShardingOptions plain = options;
    plain.defer_replica_sums = false;
    ToyTransformer net;
    std::size_t all = 0, largest = 0;
    for (const auto& unit : expected_units(net, options.wrap, options.param_dtype)) {
      const std::size_t bytes =
          sizeof(float) * static_cast<std::size_t>(unit.layout(2).local_gradient_elements());
      all += bytes;
      largest = std::max(largest, bytes);
    }
    const auto communication = [](const ShardingOptions& sharding) {
      return plan_toy(4, {.sharding = sharding, .micro_batches = 3})
          .memory.of(MemoryKind::communication);
    };
    EXPECT_EQ(communication(options), communication(plain) + all - 2 * largest);
  }
}

// The last backward of a step uses the first block alone.
double norm_of_last_block(const ShardingOptions& options, bool defers) {
  double norm = 0;
  on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
    model.set_requires_all_reduce(!defers);
    train_once(context, net);
    model.set_requires_all_reduce(true);
    mean(net.embed(toy_batch(context.rank(), 2).ids)).backward();
    const double mine = model.grad_norm([](const nn::NamedParameter& parameter) {
      return parameter.name.find("blocks.2") != std::string::npos;
    });
    if (context.is_main()) norm = mine;
  });
  return norm;
}

TEST(DeferredSums, OfUnitsThatTheLastBackwardDoesNotUseAreReducedToo) {
  for (const ShardingOptions& options : all_deferring()) {
    const double expected = norm_of_last_block(options, false);
    EXPECT_GT(expected, 0);
    EXPECT_EQ(norm_of_last_block(options, true), expected);
  }
}

TEST(DeferredSums, ZeroGradDropsThem) {
  for (const ShardingOptions& options : all_deferring()) {
    on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      train_once(context, net);
      const double once = model.grad_norm();
      optimizer.zero_grad();
      for (int round = 0; round < 2; ++round) {
        model.set_requires_all_reduce(false);
        train_once(context, net);
        optimizer.zero_grad();
        model.set_requires_all_reduce(true);
        train_once(context, net);
        EXPECT_EQ(model.grad_norm(), once) << testing::describe(options);
        optimizer.zero_grad();
      }
    });
  }
}

TEST(DeferredSums, ZeroGradOfSomeParametersDropsTheirs) {
  for (const ShardingOptions& options : all_deferring()) {
    for (const bool uses_all : {true, false}) {
      on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
        const auto is_dropped = [](const nn::NamedParameter& parameter) {
          return parameter.name.find("norm") != std::string::npos;
        };
        const auto is_kept = [&](const nn::NamedParameter& parameter) {
          return !is_dropped(parameter);
        };
        const auto last = [&] {
          if (uses_all) return train_once(context, net);
          (sum(net.embed(toy_batch(context.rank(), 2).ids)) * 0.0).backward();
        };
        std::vector<nn::NamedParameter> parameters = model.parameters();
        train_once(context, net);
        const double dropped = uses_all ? model.grad_norm(is_dropped) : 0;
        const double kept = (uses_all ? 2 : 1) * model.grad_norm(is_kept);
        for (auto& parameter : parameters) parameter.tensor.zero_grad();
        model.set_requires_all_reduce(false);
        train_once(context, net);
        for (auto& parameter : parameters) {
          if (is_dropped(parameter)) parameter.tensor.zero_grad();
        }
        model.set_requires_all_reduce(true);
        last();
        EXPECT_NEAR(model.grad_norm(is_dropped), dropped, 1e-6 * dropped);
        EXPECT_NEAR(model.grad_norm(is_kept), kept, 1e-5 * kept);
      });
    }
  }
}

// Passes inside no_sync() and passes that stay in the group, in one step.
TEST(DeferredSums, AddToThoseOfNoSync) {
  for (const ShardingOptions& options : all_deferring()) {
    on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      train_once(context, net);
      const double once = model.grad_norm();
      for (auto& parameter : model.parameters()) Tensor(parameter.tensor).zero_grad();
      {
        const auto scope = model.no_sync();
        train_once(context, net);
      }
      model.set_requires_all_reduce(false);
      train_once(context, net);
      {
        const auto scope = model.no_sync();
        train_once(context, net);
      }
      model.set_requires_all_reduce(true);
      train_once(context, net);
      EXPECT_NEAR(model.grad_norm(), 4 * once, 4e-6 * once);
    });
  }
}

TEST(DeferredSums, StepClipAndSaveRefuseThem) {
  for (const ShardingOptions& options : all_deferring()) {
    on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::AdamW optimizer(model.parameters(), {});
      model.set_requires_all_reduce(false);
      train_once(context, net);
      model.set_requires_all_reduce(true);
      const auto expect_refused = [](const std::function<void()>& call) {
        const std::string message = message_of<std::logic_error>(call);
        EXPECT_NE(message.find(deferred_refusal), std::string::npos) << message;
      };
      expect_refused([&] { optimizer.step(); });
      expect_refused([&] { model.clip_grad_norm(1.0); });
      expect_refused([&] { (void)model.grad_norm(); });
      expect_refused([&] { model.require_reduced("save()"); });
      train_once(context, net);
      model.clip_grad_norm(1.0);
      optimizer.step();
    });
  }
}

TEST(DeferredSums, AreRefusedWhereThereAreNone) {
  const auto refusal = [](const ShardingOptions& options) {
    return message_of<Error>(
        [&] { on_ranks(2, options, [](Context&, ToyTransformer&, ShardedModel&) {}); });
  };
  for (const Strategy strategy : {Strategy::full_shard, Strategy::no_shard}) {
    const std::string message = refusal(deferring(strategy, 0));
    EXPECT_EQ(message.find("defer_replica_sums is for HYBRID_SHARD and HYBRID_SHARD_ZERO2: "), 0u)
        << message;
  }
  EXPECT_EQ(refusal(deferring(Strategy::hybrid_shard, 1)).find("defer_replica_sums needs a "), 0u);
  on_ranks(
      4, toy_options(Strategy::hybrid_shard, 2),
      [](Context&, ToyTransformer&, ShardedModel& model) {
        const std::string message =
            message_of<std::logic_error>([&] { model.set_requires_all_reduce(false); });
        EXPECT_NE(message.find("without ShardingOptions::defer_replica_sums"), std::string::npos)
            << message;
      });
}

}  // namespace
}  // namespace tessera::testing
