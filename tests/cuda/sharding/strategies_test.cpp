// Every strategy on ranks that share a GPU: the same bits as NO_SHARD there, losses close to the
// CPU's, and no access that the order of the queues does not cover.
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/device_under_test.h"
#include "models/gpt2/gpt2.h"
#include "sharding/strategies/strategy_bits.h"
#include "sharding/units/mixed_module.h"

namespace tessera {
namespace {

using testing::same_bits;
using testing::TrainingCase;
using testing::Trajectory;

constexpr std::int64_t length = 8;
constexpr std::int64_t vocabulary = 64;

// The smallest model with every mechanism: two blocks to prefetch, a root unit with a tied table.
Trajectory train(int world, const ShardingOptions& options, Device device, double dropout = 0) {
  const TrainingCase what{.dropout = dropout,
                          .max_norm = 1e-2,  // clipped
                          .steps = 2,
                          .batch = 1,
                          .device = device};
  const auto make = [](double rate) {
    models::Gpt2Config config;
    config.vocab_size = vocabulary;
    config.n_positions = length;
    config.n_embd = 32;
    config.n_layer = 2;
    config.n_head = 2;
    config.n_inner = 64;
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = rate;
    return std::make_unique<models::GPT2LMHeadModel>(config);
  };
  return testing::train_ranks(world, options, what, make, length, vocabulary);
}

ShardingOptions options_of(Strategy strategy, int group_size = 0,
                           std::optional<DType> param_dtype = std::nullopt) {
  ShardingOptions options;
  options.strategy = strategy;
  options.wrap = WrapPolicy::transformer({"GPT2Block"});
  options.group_size = group_size;
  options.param_dtype = param_dtype;
  return options;
}

class DeviceStrategies : public ::testing::Test {
  const testing::AccessChecking access_checking_;
};

void expect_close_losses(const Trajectory& expected, const Trajectory& got, double relative) {
  const std::vector<double> a = expected.mean_losses(), b = got.mean_losses();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], relative * std::abs(a[i])) << "step " << i;
  }
}

TEST_F(DeviceStrategies, TwoRanks) {
  const Trajectory plain = train(2, options_of(Strategy::no_shard), Device::cuda());
  expect_close_losses(train(2, options_of(Strategy::no_shard), Device::cpu()), plain, 1e-4);
  EXPECT_NE(plain.losses.front().front(), plain.losses.front().back());
  for (const auto& options :
       {options_of(Strategy::shard_optimizer), options_of(Strategy::shard_grad_op),
        options_of(Strategy::full_shard), options_of(Strategy::hybrid_shard, 1),
        options_of(Strategy::hybrid_shard_zero2, 2)}) {
    EXPECT_TRUE(same_bits(plain, train(2, options, Device::cuda()))) << testing::describe(options);
  }
}

// Units of four segments, whose frozen ones stay in the buffer while the others are gathered again.
TEST_F(DeviceStrategies, MixedAndFrozenUnits) {
  const TrainingCase what{
      .micro_batches = 2, .max_norm = 1e-2, .batch = 1, .device = Device::cuda()};
  Trajectory plain;
  for (const Strategy strategy : {Strategy::no_shard, Strategy::shard_optimizer,
                                  Strategy::shard_grad_op, Strategy::full_shard}) {
    ShardingOptions options;
    options.strategy = strategy;
    options.wrap = WrapPolicy::list({"mixed", "fixed"});
    const Trajectory got = testing::train_ranks(3, options, what, [](double dropout) {
      return std::make_unique<testing::MixedAndFrozen>(dropout);
    });
    if (strategy == Strategy::no_shard) plain = got;
    EXPECT_TRUE(same_bits(plain, got)) << testing::describe(options);
  }
}

// Groups of two, so that sums across groups are tested too.
TEST_F(DeviceStrategies, FourRanks) {
  const Trajectory plain = train(4, options_of(Strategy::no_shard), Device::cuda());
  expect_close_losses(train(4, options_of(Strategy::no_shard), Device::cpu()), plain, 1e-4);
  ShardingOptions resharded = options_of(Strategy::full_shard);
  resharded.reshard_after_forward = 2;
  resharded.limit_all_gathers = 3;
  for (const auto& options :
       {options_of(Strategy::shard_optimizer), options_of(Strategy::shard_grad_op),
        options_of(Strategy::full_shard), options_of(Strategy::hybrid_shard, 2),
        options_of(Strategy::hybrid_shard_zero2, 2), resharded}) {
    EXPECT_TRUE(same_bits(plain, train(4, options, Device::cuda()))) << testing::describe(options);
  }
}

// Layers that run again between the queues' gathers and reductions.
TEST_F(DeviceStrategies, Recomputation) {
  const Trajectory plain = train(2, options_of(Strategy::no_shard), Device::cuda(), 0.1);
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    for (const auto how : {ActivationCheckpointing::full, ActivationCheckpointing::selective}) {
      ShardingOptions options = options_of(strategy);
      options.activation_checkpointing = how;
      EXPECT_TRUE(same_bits(plain, train(2, options, Device::cuda(), 0.1)))
          << testing::describe(options);
    }
  }
}

TEST_F(DeviceStrategies, BFloat16) {
  const auto options = [](Strategy strategy) { return options_of(strategy, 0, bfloat16); };
  const Trajectory plain = train(2, options(Strategy::no_shard), Device::cuda());
  expect_close_losses(train(2, options(Strategy::no_shard), Device::cpu()), plain, 2e-2);
  EXPECT_TRUE(same_bits(plain, train(2, options(Strategy::full_shard), Device::cuda())));
}

// Sums of passes without communication, and buffers that wait for both queues.
TEST_F(DeviceStrategies, UnsynchronisedPasses) {
  const auto sums = [](Strategy strategy) {
    testing::Collected collected;
    launch(
        2,
        [&](Context& context) {
          manual_seed(5);
          testing::ToyTransformer net;
          ShardedModel model = fully_shard(net, context, testing::toy_options(strategy));
          optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
          for (int pass = 0; pass < 3; ++pass) {
            const auto batch = testing::toy_batch(2 * pass + context.rank(), 1);
            const Tensor ids = batch.ids.to(context.device());
            const Tensor targets = batch.targets.to(context.device());
            if (pass < 2) {
              const auto scope = model.no_sync();
              net.loss(ids, targets).backward();
            } else {
              net.loss(ids, targets).backward();
            }
          }
          optimizer.step();
          collected.add(model);
        },
        Device::cuda());
    return collected.values();
  };
  EXPECT_EQ(sums(Strategy::full_shard), sums(Strategy::no_shard));
}

TEST_F(DeviceStrategies, ParametersOfAnotherDeviceAreMoved) {
  testing::Collected on_gpu, on_cpu;
  for (const Device device : {Device::cuda(), Device::cpu()}) {
    launch(
        2,
        [&](Context& context) {
          manual_seed(5);
          const DeviceGuard cpu(Device::cpu());  // the module is created there
          testing::ToyTransformer net;
          const ShardedModel model =
              fully_shard(net, context, testing::toy_options(Strategy::full_shard));
          for (const auto& parameter : model.parameters())
            EXPECT_EQ(parameter.tensor.device(), device);
          (device == Device::cpu() ? on_cpu : on_gpu).add(model);
        },
        device);
  }
  EXPECT_EQ(on_gpu.values(), on_cpu.values());
}

TEST_F(DeviceStrategies, MetricsAreGatheredFromTheDevice) {
  std::vector<float> rows(20);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  const data::TensorDataset dataset{Tensor::from(rows, {10, 2}), Tensor::from(rows, {10, 2})};
  launch(
      3,
      [&](Context& context) {
        data::TensorLoader loader = context.prepare(data::TensorLoader(dataset, {.batch_size = 2}));
        std::vector<double> seen;
        for (auto [x, y] : loader) {
          EXPECT_EQ(y.device(), context.device());
          const Tensor all = context.gather_for_metrics(y, loader);
          EXPECT_EQ(all.device(), context.device());
          for (const double value : all.to_vector()) seen.push_back(value);
        }
        EXPECT_EQ(seen, std::vector<double>(rows.begin(), rows.end()));
      },
      Device::cuda());
}

}  // namespace
}  // namespace tessera
