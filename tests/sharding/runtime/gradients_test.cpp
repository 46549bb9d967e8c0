// Gradients over several passes: accumulated, dropped, scaled and passed to an optimizer.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <stdexcept>

#include "base/error.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::message_of;
using testing::on_ranks;
using testing::toy_batch;
using testing::toy_options;
using testing::ToyTransformer;
using testing::train_once;

TEST(ShardedParameters, GradientsAreReadFromTheModel) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [&](Context& context, ToyTransformer& net, ShardedModel& model) {
             train_once(context, net);
             for (const auto& parameter : net.named_parameters()) {
               EXPECT_FALSE(parameter.tensor.grad().defined()) << parameter.name;
             }
             for (const auto& parameter : model.parameters()) {
               ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
               EXPECT_EQ(parameter.tensor.grad().elements(), parameter.tensor.elements());
             }
           });
}

TEST(OptimizerSteps, WithoutGradientsChangeNothing) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::AdamW optimizer(model.parameters(), {.lr = 0.1, .weight_decay = 0.5});
      std::vector<std::vector<double>> before;
      for (const auto& parameter : model.parameters())
        before.push_back(parameter.tensor.to_vector());
      EXPECT_EQ(model.clip_grad_norm(1.0), 0);
      optimizer.step();
      train_once(context, net);
      optimizer.zero_grad();
      EXPECT_EQ(model.clip_grad_norm(1.0), 0);
      optimizer.step();
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_EQ(model.parameters()[i].tensor.to_vector(), before[i]);
      }
      EXPECT_EQ(optimizer.state_bytes(), 0u);
    });
  }
}

class CountedAdamW : public optim::AdamW {
 public:
  using AdamW::AdamW;
  int calls = 0;

 private:
  void update(const optim::Update& u) override {
    ++calls;
    AdamW::update(u);
  }
};

// One call of the kernel per unit's shard, for any number of parameters in the unit.
TEST(OptimizerSteps, TakeOneCallPerUnit) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      CountedAdamW optimizer(model.parameters(), {.decay = optim::decay_matrices});
      for (int step = 1; step <= 2; ++step) {
        train_once(context, net);
        model.clip_grad_norm(1e-3);
        optimizer.step();
        EXPECT_EQ(optimizer.calls, 4 * step)
            << testing::describe(options);  // 3 blocks and the root
        optimizer.zero_grad();
      }
    });
  }
}

// After clipping, users read the clipped gradient, and the optimizer uses the same.
TEST(Gradients, AreClippedWhereverTheyAreRead) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      const auto train = [&](bool read) {
        std::vector<std::vector<double>> values;
        optim::Sgd optimizer(model.parameters(), {.lr = 1});
        train_once(context, net);
        const double norm = model.clip_grad_norm(0);
        std::vector<std::vector<double>> plain;
        for (const auto& p : model.parameters()) plain.push_back(p.tensor.grad().to_vector());
        model.clip_grad_norm(norm / 8);
        const auto factor = static_cast<float>(norm / 8 / (norm + 1e-6));
        std::vector<std::vector<double>> before;
        for (const auto& p : model.parameters()) before.push_back(p.tensor.to_vector());
        for (std::size_t i = 0; i < plain.size(); ++i) {
          if (!read) break;
          const auto got = model.parameters()[i].tensor.grad().to_vector();
          for (std::size_t k = 0; k < got.size(); ++k)
            EXPECT_EQ(got[k], static_cast<float>(plain[i][k]) * factor);
        }
        optimizer.step();
        for (std::size_t i = 0; i < plain.size(); ++i) {
          const auto after = model.parameters()[i].tensor.to_vector();
          for (std::size_t k = 0; k < after.size(); ++k) {
            EXPECT_EQ(after[k],
                      static_cast<float>(before[i][k]) - static_cast<float>(plain[i][k]) * factor);
          }
        }
        optimizer.zero_grad();
      };
      train(true);
      train(false);
    });
  }
}

std::vector<std::vector<double>> gradients(const ShardedModel& model) {
  std::vector<std::vector<double>> all;
  for (const auto& parameter : model.parameters())
    all.push_back(parameter.tensor.grad().to_vector());
  return all;
}

// zero_grad of some parameters only, and a clipping factor that is still pending.
TEST(Gradients, AccumulateOnlyOntoExistingGradients) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      train_once(context, net);
      const auto once = gradients(model);
      const double norm = model.clip_grad_norm(0);
      const auto parameters = model.parameters();
      Tensor(parameters[2].tensor).zero_grad();
      train_once(context, net);
      auto got = gradients(model);
      EXPECT_EQ(got[2], once[2]) << testing::describe(options);
      for (std::size_t i = 0; i < once[3].size(); ++i) EXPECT_EQ(got[3][i], 2 * once[3][i]);

      for (const auto& parameter : parameters) Tensor(parameter.tensor).zero_grad();
      train_once(context, net);
      EXPECT_EQ(model.clip_grad_norm(norm / 2), norm);
      train_once(context, net);  // g/2 + g
      got = gradients(model);
      for (std::size_t p = 0; p < got.size(); ++p) {
        for (std::size_t i = 0; i < got[p].size(); ++i) {
          EXPECT_NEAR(got[p][i], 1.5 * once[p][i], 1e-6 + 1e-5 * std::abs(once[p][i]));
        }
      }
    });
  }
}

// Reading a gradient applies its pending factor; the norm must not apply it again.
TEST(Gradients, ClippingTwiceAfterReading) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [&](Context& context, ToyTransformer& net, ShardedModel& model) {
             train_once(context, net);
             const double norm = model.clip_grad_norm(0);
             model.clip_grad_norm(norm / 4);
             (void)model.parameters().front().tensor.grad();
             EXPECT_NEAR(model.clip_grad_norm(0), norm / 4, 1e-5 * norm);
           });
}

// 256 + 1 is 256 in bfloat16.
TEST(Gradients, OfMicroBatchesAreAddedInFloat32) {
  class OneLayer : public nn::Module {
   public:
    OneLayer() { layer_ = register_module("layer", nn::Linear(4, 1)); }
    Tensor forward(const Tensor& x) const { return mean(layer_(x)); }

   private:
    nn::Linear layer_;
  };
  for (ShardingOptions options : all_strategies(2)) {
    options.wrap = WrapPolicy::list({"layer"});
    options.param_dtype = bfloat16;
    for (const bool sync_each_batch : {true, false}) {
      launch(2, [&](Context& context) {
        manual_seed(3);
        OneLayer net;
        ShardedModel model = fully_shard(net, context, options);
        model.set_requires_gradient_sync(sync_each_batch);
        net.forward(Tensor::full({2, 4}, 256)).backward();
        model.set_requires_gradient_sync(true);
        net.forward(Tensor::full({2, 4}, 1)).backward();
        for (const auto& parameter : model.parameters()) {
          for (const double value : parameter.tensor.grad().to_vector()) {
            EXPECT_EQ(value, parameter.name.ends_with("weight") ? 257.0 : 2.0)
                << parameter.name << ' ' << testing::describe(options);
          }
        }
      });
    }
  }
}

// The next synchronised pass reduces the sums of a no_sync pass, even if it did not use the unit.
// It is the first one that uses the other unit.
TEST(NoSync, UnitsThatTheLastPassDidNotUse) {
  class TwoWays : public nn::Module {
   public:
    TwoWays() {
      left_ = register_module("left", nn::Linear(4, 1));
      right_ = register_module("right", nn::Linear(4, 1));
    }
    Tensor forward(const Tensor& x, bool left) const { return mean(left ? left_(x) : right_(x)); }

   private:
    nn::Linear left_, right_;
  };
  for (ShardingOptions options : all_strategies(2)) {
    options.wrap = WrapPolicy::list({"left", "right"});
    for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
      options.param_dtype = dtype;
      launch(2, [&](Context& context) {
        manual_seed(3);
        TwoWays net;
        ShardedModel model = fully_shard(net, context, options);
        const Tensor x = Tensor::full({2, 4}, context.rank() + 1.0);
        {
          const auto scope = model.no_sync();
          net.forward(x, true).backward();
          EXPECT_EQ(
              message_of<std::logic_error>([&] { (void)model.no_sync(); }),
              "no_sync() inside the scope of another no_sync(): one scope is enough. Leave out "
              "the inner one, or end the outer one before");
          EXPECT_THROW(model.clip_grad_norm(0), std::logic_error);  // nothing is reduced yet
        }
        net.forward(x, false).backward();
        for (const auto& parameter : model.parameters()) {
          ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
          for (const double value : parameter.tensor.grad().to_vector()) {
            EXPECT_EQ(value, parameter.name.ends_with("weight") ? 1.5 : 1.0)
                << parameter.name << ' ' << testing::describe(options);
          }
        }
      });
    }
  }
}

TEST(OptimizerSteps, NeedTheModelsParameters) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context&, ToyTransformer& net, ShardedModel&) {
      const std::string message = message_of<std::logic_error>(
          [&] { const optim::Sgd optimizer(net.named_parameters(), {.lr = 0.1}); });
      EXPECT_NE(message.find("make the optimizer from ShardedModel::parameters()"),
                std::string::npos)
          << message;
    });
  }
}

// A backward that an exception ends half-way has no effect on the next step.
TEST(Gradients, AfterABackwardThatFailed) {
  const auto fail_half_way = [](ToyTransformer& net) {
    const auto batch = toy_batch(70, 2);
    // The last unit's backward has run when the first one's fails.
    const Tensor hidden = net.embed(batch.ids);
    const Tensor failing = hidden.detach();
    autograd::record(Op::reshape, {hidden}, {failing},
                     [](std::vector<Tensor>&, autograd::GradientSink&) {
                       throw std::runtime_error("half-way");
                     });
    const Tensor loss = cross_entropy(net.head(failing), batch.targets);
    EXPECT_THROW(loss.backward(), std::runtime_error);
  };
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      train_once(context, net);
      const auto expected_here = gradients(model);
      for (const auto& parameter : model.parameters()) Tensor(parameter.tensor).zero_grad();
      fail_half_way(net);
      for (const auto& parameter : model.parameters()) Tensor(parameter.tensor).zero_grad();
      train_once(context, net);
      EXPECT_EQ(gradients(model), expected_here) << testing::describe(options);
    });
  }
}

}  // namespace
}  // namespace tessera
