// Adafactor under sharding: the bits of NO_SHARD on every world, those of the module alone on one
// rank, and what is refused.
#include "engine/optim/adafactor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "sharding/sharding_testing.h"
#include "sharding/strategies/strategy_bits.h"

namespace tessera {
namespace {

using Values = std::map<std::string, std::vector<double>>;

optim::AdafactorOptions adafactor_of_test() {
  return {.lr = 0.05, .weight_decay = 0.1, .decay = optim::decay_matrices};
}

// With parameters in segments of their own, which change no bit.
ShardingOptions factored_apart(ShardingOptions options) {
  const optim::ShardNeeds needs = optim::needs_of(adafactor_of_test());
  options.apart = needs.apart;
  options.block = needs.block;
  return options;
}

Values trained_by_adafactor(int world, const ShardingOptions& options) {
  testing::Collected collected;
  testing::on_ranks(world, options,
                    [&](Context& context, testing::ToyTransformer& net, ShardedModel& model) {
                      optim::Adafactor optimizer(model.parameters(), adafactor_of_test());
                      for (int step = 0; step < 3; ++step) {
                        testing::train_once(context, net);
                        (void)model.clip_grad_norm(0.1);
                        optimizer.step();
                        optimizer.zero_grad();
                      }
                      collected.add(model);
                    });
  return collected.values();
}

TEST(ShardedAdafactor, HasTheSameBitsOnEveryWorld) {
  for (const int world : {1, 2, 3, 4}) {
    std::map<int, Values> expected;  // by order of summation
    for (const ShardingOptions& options : testing::all_strategies(world)) {
      const int order = testing::summation_group(options, world);
      if (!expected.contains(order)) {
        ShardingOptions plain = testing::toy_options(Strategy::no_shard);
        plain.reduction_group = order;
        expected[order] = trained_by_adafactor(world, plain);
      }
      const std::string text = testing::describe(options) + " on " + std::to_string(world);
      EXPECT_EQ(trained_by_adafactor(world, options), expected[order]) << text;
      EXPECT_EQ(trained_by_adafactor(world, factored_apart(options)), expected[order])
          << text << ", apart";
    }
  }
}

TEST(ShardedAdafactor, HasTheBitsOfTheModuleAlone) {
  Values alone;
  launch(1, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(3);
    testing::ToyTransformer net;
    optim::Adafactor optimizer(net.parameters(), adafactor_of_test());
    for (int step = 0; step < 2; ++step) {
      testing::train_once(context, net);
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const nn::NamedParameter& one : net.parameters()) alone[one.name] = one.tensor.to_vector();
  });
  testing::Collected collected;
  testing::on_ranks(1, testing::toy_options(Strategy::full_shard),
                    [&](Context& context, testing::ToyTransformer& net, ShardedModel& model) {
                      optim::Adafactor optimizer(model.parameters(), adafactor_of_test());
                      for (int step = 0; step < 2; ++step) {
                        testing::train_once(context, net);
                        optimizer.step();
                        optimizer.zero_grad();
                      }
                      collected.add(model);
                    });
  EXPECT_EQ(collected.values(), alone);
}

// The value that element `n` of parameter `i` begins with. Rows, columns and blocks of matrices
// differ by orders of magnitude, so that moments and clipping matter.
float first_value(const Shape& shape, std::int64_t n, std::size_t i) {
  const bool is_matrix = shape.dimensions() > 1;
  const std::int64_t columns = is_matrix ? shape[shape.dimensions() - 1] : 1;
  const std::int64_t rows = is_matrix ? shape[shape.dimensions() - 2] : 1;
  const bool upper = n / columns % rows < rows / 2, left = n % columns < columns / 2;
  const float scale = upper != left ? 0.02f : upper ? 0.4f : 1.0f;
  return scale * 0.01f *
         static_cast<float>((n * 37 + 11 * static_cast<std::int64_t>(i)) % 101 - 50);
}

// Parameters with gradients that are the same on all ranks, so that their mean over 2 or 4 ranks
// has the bits of one rank's.
class Shapes : public nn::Module {
 public:
  explicit Shapes(const std::vector<Shape>& shapes) : count_(shapes.size()) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      std::vector<float> values;
      for (std::int64_t n = 0; n < shapes[i].elements(); ++n)
        values.push_back(first_value(shapes[i], n, i));
      register_parameter(name(i), Tensor::from(values, shapes[i]).set_requires_grad(true));
    }
  }
  Tensor loss() {
    Tensor total;
    for (std::size_t i = 0; i < count_; ++i) {
      const Tensor term = sum(square(square(parameter(name(i)))));
      total = total ? total + term : term;
    }
    return total;
  }

 private:
  static std::string name(std::size_t i) { return "p" + std::to_string(i); }

  std::size_t count_;
};

// `change` may change the gradients of the first step.
Values trained_shapes(int world, const ShardingOptions& options, const std::vector<Shape>& shapes,
                      int steps,
                      const std::function<void(const Context&, const ShardedModel&)>& change = {}) {
  testing::Collected collected;
  launch(world, [&](Context& context) {
    const testing::OneThread one_thread;
    Shapes net(shapes);
    ShardedModel model = fully_shard(net, context, options);
    optim::Adafactor optimizer(model.parameters(), adafactor_of_test());
    for (int step = 0; step < steps; ++step) {
      net.loss().backward();
      if (step == 0 && change) change(context, model);
      optimizer.step();
      optimizer.zero_grad();
    }
    collected.add(model);
  });
  return collected.values();
}

// Odd matrices, stacked ones and vectors, cut wherever 2, 3 or 4 ranks cut them.
TEST(ShardedAdafactor, CutsMatricesAnywhere) {
  const std::vector<Shape> shapes = {{37, 61}, {3, 29, 23}, {1, 200}, {200, 1}, {131}, {7, 1000}};
  const Values expected = trained_shapes(1, {}, shapes, 3);
  for (const nn::NamedParameter& first : Shapes(shapes).parameters())
    EXPECT_NE(first.tensor.to_vector(), expected.at(first.name)) << first.name;
  for (const int world : {2, 4}) {
    for (ShardingOptions options : testing::all_strategies(world)) {
      options.wrap = {};
      EXPECT_EQ(trained_shapes(world, options, shapes, 3), expected)
          << testing::describe(options) << " on " << world;
    }
  }
  ShardingOptions plain;
  plain.strategy = Strategy::no_shard;
  EXPECT_EQ(trained_shapes(3, {}, shapes, 3), trained_shapes(3, plain, shapes, 3));
}

// Parts of several pieces, and sums of several rounds. Of the last matrix, several ranks have
// parts.
TEST(ShardedAdafactor, WorksInPiecesAndRounds) {
  const std::vector<Shape> shapes = {
      {2100, 1, 1000}, {2100, 1, 1000}, {optim::adafactor_piece + 777}, {3, 1500, 1001}};
  ASSERT_GT(4 * 2100 * 1001, optim::adafactor_numbers);
  ASSERT_GT(3 * 1500 * 1001, optim::adafactor_piece);
  ShardingOptions plain;
  plain.strategy = Strategy::no_shard;
  EXPECT_TRUE(trained_shapes(4, {}, shapes, 2) == trained_shapes(1, plain, shapes, 2));
}

// A gradient of one rank's part that is NaN makes its parameter NaN, on every rank, and no other.
TEST(ShardedAdafactor, ANanOfOnePartStaysInItsMatrix) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::no_shard}) {
    ShardingOptions options;
    options.strategy = strategy;
    const Values values =
        trained_shapes(3, options, {{37, 61}, {29, 23}}, 1,
                       [&](const Context& context, const ShardedModel& model) {
                         for (const nn::NamedParameter& one : model.parameters()) {
                           if (one.name != "p0" || one.tensor.elements() == 0) continue;
                           if (strategy == Strategy::full_shard && context.rank() != 0) continue;
                           Tensor gradient(one.tensor.grad());
                           std::vector<double> numbers = gradient.to_vector();
                           numbers.front() = std::numeric_limits<double>::quiet_NaN();
                           gradient.copy_from(Tensor::from(numbers, gradient.shape()));
                         }
                       });
    const auto is_nan = [](double value) { return std::isnan(value); };
    EXPECT_TRUE(std::all_of(values.at("p0").begin(), values.at("p0").end(), is_nan));
    EXPECT_TRUE(std::none_of(values.at("p1").begin(), values.at("p1").end(), is_nan));
  }
}

// A frozen matrix sends nothing, keeps its values, and comes back with its moments.
TEST(ShardedAdafactor, FreezesMatricesForAWhile) {
  const std::string frozen = "blocks.1.in.weight";
  const auto run = [&](const ShardingOptions& options) {
    testing::Collected collected;
    testing::on_ranks(
        2, options, [&](Context& context, testing::ToyTransformer& net, ShardedModel& model) {
          optim::Adafactor optimizer(model.parameters(), adafactor_of_test());
          const auto& all = optimizer.parameters();
          const auto found = std::find_if(all.begin(), all.end(),
                                          [&](const auto& one) { return one.name == frozen; });
          ASSERT_NE(found, all.end());
          const auto index = static_cast<std::size_t>(found - all.begin());
          const auto everything = [&] {
            return std::vector{all[index].tensor.to_vector(),
                               optimizer.state(index, "row_var").to_vector(),
                               optimizer.state(index, "col_var").to_vector()};
          };
          for (int step = 0; step < 3; ++step) {
            Tensor(all[index].tensor).set_requires_grad(step != 1);
            const auto before = everything();
            testing::train_once(context, net);
            optimizer.step();
            optimizer.zero_grad();
            EXPECT_EQ(everything() == before, step == 1) << step;
            EXPECT_EQ(optimizer.step_count(index), step == 2 ? 2 : 1);
          }
          collected.add(model);
        });
    return collected.values();
  };
  const Values expected = run(testing::toy_options(Strategy::no_shard));
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    EXPECT_EQ(run(testing::toy_options(strategy)), expected) << name_of(strategy);
  }
}

TEST(ShardedAdafactor, RefusesStateInFiles) {
  for (const bool all : {false, true}) {
    ShardingOptions options = testing::toy_options(Strategy::full_shard);
    options.offload.folder = ::testing::TempDir();
    (all ? options.offload.gradients : options.offload.optimizer) = Placement::file;
    testing::on_ranks(1, options, [](Context&, testing::ToyTransformer&, ShardedModel& model) {
      const std::string text =
          testing::message_of<Error>([&] { (void)optim::Adafactor(model.parameters(), {}); });
      EXPECT_NE(text.find("Adafactor keeps parameters"), std::string::npos) << text;
    });
  }
}

}  // namespace
}  // namespace tessera
