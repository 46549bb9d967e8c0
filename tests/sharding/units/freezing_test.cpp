// Parameters that are frozen and unfrozen between steps of a sharded model.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sharding/sharding_testing.h"

namespace tessera::testing {
namespace {

void set_trained(ToyTransformer& net, const std::string& part, bool trained) {
  for (auto& parameter : net.named_parameters()) {
    if (parameter.name.find(part) != std::string::npos) parameter.tensor.set_requires_grad(trained);
  }
}

std::map<std::string, std::vector<double>> values_of(const ShardedModel& model) {
  std::map<std::string, std::vector<double>> values;
  for (const auto& parameter : model.parameters())
    values[parameter.name] = parameter.tensor.to_vector();
  return values;
}

TEST(Freezing, FrozenParametersStayAndOthersTrainOn) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
      const auto step = [&] {
        train_once(context, net);
        model.clip_grad_norm(1.0);
        optimizer.step();
        optimizer.zero_grad();
      };
      step();
      for (const std::string part : {"blocks.1.", "norm2"}) {  // a whole unit; parts of units
        set_trained(net, part, false);
        const auto before = values_of(model);
        step();
        step();
        for (const auto& [name, values] : values_of(model)) {
          const bool frozen = name.find(part) != std::string::npos;
          if (values.empty()) continue;
          EXPECT_EQ(values == before.at(name), frozen) << name << ' ' << testing::describe(options);
        }
        set_trained(net, part, true);
        const auto thawed = values_of(model);
        step();
        for (const auto& [name, values] : values_of(model)) {
          if (values.empty()) continue;
          EXPECT_NE(values, thawed.at(name)) << name;
        }
      }
    });
  }
}

// The gradients of the trained parameters are those of a model in which the others were always
// frozen.
TEST(Freezing, GradientsAreThoseOfAModelThatWasFrozenBefore) {
  for (const ShardingOptions& options : all_strategies(2)) {
    double expected = 0, got = 0;
    launch(2, [&](Context& context) {
      manual_seed(3);
      ToyTransformer net;
      set_trained(net, "norm2", false);
      ShardedModel model = fully_shard(net, context, options);
      train_once(context, net);
      const double norm = model.clip_grad_norm(0);
      if (context.is_main()) expected = norm;
    });
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      train_once(context, net);  // its results are not used
      set_trained(net, "norm2", false);
      for (auto& parameter : model.parameters()) parameter.tensor.zero_grad();
      train_once(context, net);
      const double norm = model.clip_grad_norm(0);
      if (context.is_main()) got = norm;
    });
    EXPECT_EQ(got, expected) << testing::describe(options);
  }
}

// A discriminator that is frozen in the generator's step is not reduced unnecessarily.
TEST(Freezing, AFrozenUnitIsNotReduced) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      train_once(context, net);
      set_trained(net, "", false);
      set_trained(net, "tokens", true);
      train_once(context, net);  // the first step after a change compares the ranks
      const auto all = model.communication().collectives;
      train_once(context, net);
      const auto frozen = model.communication().collectives - all;
      set_trained(net, "", true);
      train_once(context, net);
      const auto before = model.communication().collectives;
      train_once(context, net);
      EXPECT_LT(frozen, model.communication().collectives - before) << testing::describe(options);
    });
  }
}

TEST(Freezing, RanksThatDifferAreNamed) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [](Context& context, ToyTransformer& net, ShardedModel&) {
             set_trained(net, context.is_main() ? "blocks.0.in" : "blocks.0.out", false);
             for (int round = 0; round < 2; ++round) {  // until they agree
               const std::string message = message_of<Error>([&] { train_once(context, net); });
               EXPECT_NE(message.find("requires_grad of blocks.0.in.weight is"), std::string::npos)
                   << message;
             }
           });
}

TEST(Freezing, ARankThatChangesAloneIsNamed) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [](Context& context, ToyTransformer& net, ShardedModel&) {
             train_once(context, net);
             if (context.is_main()) set_trained(net, "blocks.0.in", false);
             const std::string message = message_of<Error>([&] { train_once(context, net); });
             const std::string said =
                 "rank 0 changed requires_grad of blocks.0.in.weight and waited for all ranks to "
                 "compare theirs: change it on all ranks alike";
             EXPECT_EQ(message.find(said) != std::string::npos, context.is_main()) << message;
           });
}

TEST(Freezing, NotInTheMiddleOfAPass) {
  on_ranks(1, toy_options(Strategy::full_shard),
           [](Context& context, ToyTransformer& net, ShardedModel&) {
             const auto batch = toy_batch(context.rank(), 2);
             const Tensor loss = net.loss(batch.ids, batch.targets);
             Tensor out = loss.detach();
             autograd::record(Op::affine, {loss}, {out},
                              [&](std::vector<Tensor>& gradients, autograd::GradientSink& sink) {
                                set_trained(net, "norm2", false);
                                sink.add(0, gradients[0]);
                              });
             const std::string message = message_of<std::logic_error>([&] { out.backward(); });
             EXPECT_NE(message.find("in the middle of a forward or a backward"), std::string::npos)
                 << message;
           });
}

// The norm of a group is the same under every strategy, and all groups together give the whole
// norm.
TEST(GradNorm, OfSomeParameters) {
  std::vector<double> of_norms;
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      train_once(context, net);
      const auto is_norm = [](const nn::NamedParameter& p) {
        return p.name.find("norm") != std::string::npos;
      };
      const double norms = model.grad_norm(is_norm);
      const double others = model.grad_norm([&](const auto& p) { return !is_norm(p); });
      const double all = model.clip_grad_norm(0);
      EXPECT_EQ(model.grad_norm(), all);
      EXPECT_NEAR(std::hypot(norms, others), all, 1e-9 * all);
      if (context.is_main()) of_norms.push_back(norms);
    });
  }
  for (const double norm : of_norms) EXPECT_EQ(norm, of_norms.front());
  EXPECT_GT(of_norms.front(), 0);
}

TEST(GradNorm, FiltersThatDifferAreNamed) {
  for (const ShardingOptions& options : all_strategies(4)) {
    const int shards = options.strategy == Strategy::no_shard ? 1
                       : options.group_size > 0               ? options.group_size
                                                              : 4;
    if (shards == 1) continue;  // a rank asks no other there
    on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      train_once(context, net);
      const double all = model.grad_norm();
      const std::string message = message_of<Error>([&] {
        (void)model.grad_norm([&](const nn::NamedParameter& parameter) {
          return context.rank() % 2 == 0 || parameter.name != "blocks.0.in.weight";
        });
      });
      const int first = context.rank() / shards * shards;
      const std::string ranks =
          " on rank " + std::to_string(first) + " and not on rank " + std::to_string(first + 1);
      EXPECT_EQ(message, "grad_norm: the filter takes blocks.0.in.weight" + ranks +
                             "; it must return the same on all ranks");
      EXPECT_EQ(model.grad_norm(), all);
    });
  }
}

// Before anything is divided or exchanged.
TEST(ClipGradNorm, NumbersThatCannotBeMeantAreRefused) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [](Context& context, ToyTransformer& net, ShardedModel& model) {
             train_once(context, net);
             const double norm = model.clip_grad_norm(0);
             const double nan = std::nan(""), infinite = HUGE_VAL;
             for (const double scale : {0.0, -2.0, nan, infinite, -infinite}) {
               const std::string message =
                   message_of<std::logic_error>([&] { model.clip_grad_norm(1, scale); });
               EXPECT_NE(message.find("clip_grad_norm(): the loss scale is "), std::string::npos)
                   << message;
             }
             for (const double bound : {-1.0, nan, -infinite}) {
               const auto refuse = [&](const std::function<void()>& clip) {
                 const std::string message = message_of<std::logic_error>(clip);
                 EXPECT_NE(message.find("clip_grad_norm(): max_norm is "), std::string::npos)
                     << message;
               };
               refuse([&] { model.clip_grad_norm(bound); });
               refuse([&] { model.clip_grad_norm(bound, 1024); });
             }
             EXPECT_EQ(model.clip_grad_norm(infinite), norm);  // nothing was divided
             EXPECT_EQ(model.grad_norm(), norm);
           });
}

}  // namespace
}  // namespace tessera::testing
