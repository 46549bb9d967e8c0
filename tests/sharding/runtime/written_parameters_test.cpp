// Parameters that are written through pointers, and whole parameters that are written inside
// write_unsharded(): no gathered copy stays in use after its masters change.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "sharding/sharding_testing.h"

namespace tessera::testing {
namespace {

// All strategies in fp32 and bf16, with copies that are kept as long as possible.
std::vector<ShardingOptions> settings() {
  std::vector<ShardingOptions> all;
  for (const ShardingOptions& plain : all_strategies(2)) {
    for (const bool narrow : {false, true}) {
      for (const bool keep : {false, true}) {
        ShardingOptions options = plain;
        if (narrow) options.param_dtype = bfloat16;
        if (keep) {
          options.reshard_after_forward = false;
          options.reshard_after_backward = false;
        }
        all.push_back(options);
      }
    }
  }
  return all;
}

using Update = void (*)(ShardedModel& model, double rate);

void by_optimizer(ShardedModel& model, double rate) {
  optim::Sgd(model.parameters(), {.lr = rate}).step();
}

void by_pointer(ShardedModel& model, double rate) {
  for (auto& parameter : model.parameters()) {
    auto* const value = parameter.tensor.data_as<float>();
    const Tensor gradient = parameter.tensor.grad();
    const auto* const slope = gradient.data_as<float>();
    for (std::int64_t i = 0; i < gradient.elements(); ++i)
      value[i] -= static_cast<float>(rate) * slope[i];
  }
}

std::vector<double> losses_of(const ShardingOptions& options, Update update) {
  std::vector<double> losses;
  on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
    const auto batch = toy_batch(context.rank(), 2);
    for (int step = 0; step < 4; ++step) {
      const Tensor loss = net.loss(batch.ids, batch.targets);
      loss.backward();
      const double mean = context.mean(loss.item());
      if (context.is_main()) losses.push_back(mean);
      update(model, 0.2);
      for (auto& parameter : model.parameters()) parameter.tensor.zero_grad();
    }
  });
  return losses;
}

TEST(WrittenParameters, WritesThroughPointersAreDetectedLikeOptimizers) {
  for (const ShardingOptions& options : settings()) {
    const std::vector<double> expected = losses_of(options, by_optimizer);
    EXPECT_LT(expected.back(), expected.front());
    EXPECT_EQ(losses_of(options, by_pointer), expected)
        << testing::describe(options) << (options.param_dtype ? " bf16" : " fp32")
        << (options.reshard_after_forward ? " kept" : "");
  }
}

// A pointer that was taken once and is written through again: detected while a copy is in use, and
// correct otherwise.
TEST(WrittenParameters, OldPointersAreDetectedWhileACopyIsInUse) {
  int found = 0;
  for (const ShardingOptions& options : settings()) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      std::vector<nn::NamedParameter> parameters = model.parameters();
      std::vector<float*> old;
      for (auto& parameter : parameters) old.push_back(parameter.tensor.data_as<float>());
      const auto batch = toy_batch(context.rank(), 2);
      const auto loss_of = [&](bool backward) {
        const Tensor loss = net.loss(batch.ids, batch.targets);
        if (backward) loss.backward();
        return loss.item();
      };
      loss_of(true);
      for (std::size_t i = 0; i < old.size(); ++i) {
        for (std::int64_t e = 0; e < parameters[i].tensor.elements(); ++e) old[i][e] *= 0.5f;
      }
      double got = 0;
      const std::string message = message_of<std::logic_error>([&] { got = loss_of(true); });
      for (auto& parameter : parameters) (void)parameter.tensor.data();  // as the rules require
      const double expected = loss_of(false);
      if (message == "no exception") {
        EXPECT_EQ(got, expected) << testing::describe(options);
      } else {
        EXPECT_NE(message.find("changed later through a pointer"), std::string::npos) << message;
        if (context.is_main()) ++found;
      }
    });
  }
  EXPECT_GT(found, 0);
}

TEST(WrittenParameters, ReadingThroughAConstHandleCausesNoNewGather) {
  ShardingOptions options = toy_options(Strategy::shard_optimizer);
  on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
    train_once(context, net);
    const auto before = model.communication().collectives;
    if (context.is_main()) {  // a single rank may read
      for (const auto& parameter : model.parameters()) (void)parameter.tensor.data_as<float>();
    }
    const auto batch = toy_batch(context.rank(), 2);
    const NoGradGuard no_grad;
    (void)net.loss(batch.ids, batch.targets);
    EXPECT_EQ(model.communication().collectives, before);
  });
}

// Written elements are kept; the others keep every bit of their masters.
TEST(WriteUnsharded, KeepsWrittenValues) {
  for (const ShardingOptions& options : settings()) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      train_once(context, net);
      by_optimizer(model, 0.01);
      Collected before;
      before.add(model);
      model.write_unsharded([&] {
        for (auto& parameter : net.named_parameters()) {
          if (parameter.name != "positions") continue;
          std::vector<float> values;
          for (const double value : parameter.tensor.to_vector())
            values.push_back(static_cast<float>(value));
          values[3] = 0.5f;
          values[140] = -2.0f;
          parameter.tensor.copy_from(Tensor::from(values, parameter.shape));
        }
      });
      std::map<std::string, std::vector<double>> expected;
      for (const ShardedParameter& part : model.sharded_parameters()) {
        const std::vector<double> values = part.local.to_vector();
        for (std::int64_t i = part.save_first; i < part.save_first + part.save_count; ++i) {
          const std::int64_t at = part.first + i;
          const double was = before.value(part.name, static_cast<std::size_t>(at));
          const bool written = part.name == "positions" && (at == 3 || at == 140);
          EXPECT_EQ(values[static_cast<std::size_t>(i)], !written  ? was
                                                         : at == 3 ? 0.5
                                                                   : -2.0)
              << part.name << ' ' << at << ' ' << testing::describe(options);
        }
      }
      const auto whole = model.unsharded();
      for (const auto& parameter : net.named_parameters()) {
        if (parameter.name == "positions") {
          EXPECT_EQ(parameter.tensor.to_vector()[140], -2.0);
        }
      }
    });
  }
}

// Every rank reads the old values, not those that another rank has written into the same copy.
TEST(WriteUnsharded, ReadsTheOldValues) {
  for (const ShardingOptions& options : settings()) {
    on_ranks(2, options, [&](Context&, ToyTransformer& net, ShardedModel& model) {
      for (auto& parameter : model.parameters()) {
        if (parameter.tensor.elements() > 0)
          parameter.tensor.copy_from(Tensor::full(parameter.tensor.shape(), 1.0));
      }
      model.write_unsharded([&] {
        for (auto& parameter : net.named_parameters())
          parameter.tensor.copy_from(parameter.tensor.detach() * 0.5);
      });
      for (const auto& parameter : model.parameters()) {
        for (const double value : parameter.tensor.to_vector())
          ASSERT_EQ(value, 0.5) << parameter.name << ' ' << testing::describe(options);
      }
    });
  }
}

TEST(WriteUnsharded, RanksThatWriteDifferentValuesAreNamed) {
  for (const ShardingOptions& options : settings()) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      const auto batch = toy_batch(context.rank(), 2);
      const double before = net.loss(batch.ids, batch.targets).item();
      const std::string message = message_of<Error>([&] {
        model.write_unsharded([&] {
          Tensor value = net.named_parameters().front().tensor;
          value.copy_from(Tensor::full(value.shape(), context.rank() + 1.0, value.dtype()));
        });
      });
      EXPECT_NE(message.find("ranks 0 and 1 wrote different values into the root unit"),
                std::string::npos)
          << message;
      EXPECT_EQ(net.loss(batch.ids, batch.targets).item(), before) << testing::describe(options);
    });
  }
}

TEST(WriteUnsharded, AnExceptionLeavesTheParametersUnchanged) {
  for (const ShardingOptions& options : settings()) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      const auto batch = toy_batch(context.rank(), 2);
      const double before = net.loss(batch.ids, batch.targets).item();
      EXPECT_THROW(model.write_unsharded([&] {
        context.barrier();
        for (auto& parameter : net.named_parameters()) {
          parameter.tensor.copy_from(Tensor::zeros(parameter.shape, parameter.tensor.dtype()));
        }
        context.barrier();
        throw std::runtime_error("no");
      }),
                   std::runtime_error);
      EXPECT_EQ(net.loss(batch.ids, batch.targets).item(), before) << testing::describe(options);
    });
  }
}

}  // namespace
}  // namespace tessera::testing
