// On a GPU the addresses of a step are the same in every step: what CUDA graphs need.
#include "engine/device/memory_step.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "cuda/device_under_test.h"
#include "engine/places/step_statistics.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::ToyTransformer;

using Addresses = std::vector<const std::byte*>;

// The addresses of each step of a rank: the outputs of all modules, their gradients, the loss.
std::vector<Addresses> addresses_of_steps(Context& context, const ShardingOptions& options,
                                          int steps) {
  manual_seed(3);
  ToyTransformer net(0.1);
  Addresses seen;
  for (const auto& [name, module] : net.named_modules()) {
    if (!module->has_forward()) continue;
    module->register_forward_hook([&seen](nn::Module&, std::span<const Tensor>,
                                          std::span<Tensor> outputs) {
      for (const Tensor& output : outputs) {
        seen.push_back(std::as_const(output).data());
        output.register_hook([&seen](const Tensor& gradient) { seen.push_back(gradient.data()); });
      }
    });
  }
  ShardedModel model = fully_shard(net, context, options);
  optim::AdamW optimizer(model.parameters(), {});
  std::vector<Addresses> all;
  for (int step = 0; step < steps; ++step) {
    const MemoryStep memory(context.device());
    seen.clear();
    begin_batch({static_cast<std::uint64_t>(step), context.rank(), 1});
    const auto batch = testing::toy_batch(step, 2);
    const Tensor loss =
        net.loss(batch.ids.to(context.device()), batch.targets.to(context.device()));
    seen.push_back(loss.data());
    loss.backward();
    (void)model.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    all.push_back(seen);
  }
  return all;
}

class DeviceSteps : public ::testing::Test {
  const testing::AccessChecking access_checking_;
};

TEST_F(DeviceSteps, HaveTheSameAddressesEachTime) {
  for (const int world : {1, 2}) {
    ShardingOptions options = testing::toy_options(Strategy::full_shard);
    options.param_dtype = bfloat16;
    launch(
        world,
        [&](Context& context) {
          const auto steps = addresses_of_steps(context, options, 7);
          EXPECT_GT(steps.front().size(), 40u);
          for (std::size_t step = 4; step < steps.size(); ++step) {
            EXPECT_EQ(steps[step], steps[3]) << "step " << step << " of rank " << context.rank();
          }
          const StepStatistics memory = MemoryPool::current(context.device())->step_statistics();
          EXPECT_EQ(memory.placed, 4u);
          EXPECT_EQ(memory.displaced, 0u);
        },
        Device::cuda());
  }
}

}  // namespace
}  // namespace tessera
