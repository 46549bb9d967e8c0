// Planned devices: real code runs on them; memory is counted as on the real device and never
// accessed.
#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/autograd.h"
#include "engine/device/backend.h"
#include "engine/device/memory.h"
#include "engine/device/stream.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "engine/optim/optimizer.h"

namespace tessera {
namespace {

TEST(PlannedDevice, CountsWithoutMemory) {
  constexpr std::int64_t elements = std::int64_t{1} << 45;  // 128 TiB in fp32
  const auto pool = MemoryPool::current(Device::planned());
  const auto before = pool->stats().in_use;
  {
    const Tensor x = Tensor::zeros({elements}, float32, Device::planned());
    const Tensor y = x + x;
    EXPECT_EQ(y.device(), Device::planned());
    EXPECT_EQ(pool->stats().in_use - before, 2 * 4 * static_cast<std::size_t>(elements));
  }
  EXPECT_EQ(pool->stats().in_use, before);
}

TEST(PlannedDevice, ReadsAsZero) {
  const Tensor x = Tensor::full({3}, 7.0, float32, Device::planned());
  EXPECT_EQ(x.to_vector(), std::vector<double>(3, 0.0));
  EXPECT_EQ(sum(x).item(), 0.0);
  EXPECT_EQ(x.to(Device::cpu()).to_vector(), std::vector<double>(3, 0.0));
  const Tensor ids = Tensor::from(std::vector<std::int32_t>{1, 2, 3}, {3}).to(Device::planned());
  EXPECT_EQ(ids.to_vector(), std::vector<double>(3, 0.0));
}

// `meta` is for modules that are not yet materialised: reading a meta tensor is an error, in a plan
// and elsewhere.
TEST(PlannedDevice, MetaIsNotReadable) {
  const Tensor x = Tensor::empty({3}, float32, Device::meta());
  EXPECT_THROW((void)x.to_vector(), std::logic_error);
  EXPECT_THROW((void)x.data(), std::logic_error);
  EXPECT_THROW((void)backend_of(DeviceType::meta), std::logic_error);
}

// Block sizes are rounded as on the planned device.
TEST(PlannedDevice, RoundsLikeThePlannedDevice) {
  const auto cpu = MemoryPool::create(Device::cpu());
  const auto like_cpu = MemoryPool::create(Device::planned(DeviceType::cpu));
  const auto like_gpu = MemoryPool::create(Device::planned(DeviceType::cuda));
  std::vector<std::shared_ptr<std::byte>> blocks;
  for (const std::size_t bytes : {0u, 1u, 64u, 65u, 1'000'000u, 1'048'576u, 1'048'577u}) {
    blocks.push_back(cpu->allocate(bytes));
    blocks.push_back(like_cpu->allocate(bytes));
    blocks.push_back(like_gpu->allocate(bytes));
    EXPECT_EQ(cpu->stats().in_use, like_cpu->stats().in_use) << bytes;
    EXPECT_EQ(like_gpu->stats().in_use % 256, 0u) << bytes;
  }
  EXPECT_GT(like_gpu->stats().in_use, like_cpu->stats().in_use);
}

struct Counts {
  MemoryStats stats;
  std::size_t parameters = 0, gradients = 0, optimizer = 0;
};

// Two steps of a small network on `device`.
Counts train_on(Device device) {
  const DeviceGuard here(device);
  const auto pool = MemoryPool::create(device);
  const auto before = MemoryPool::current(device);
  MemoryPool::set_current(pool, device);
  Counts counts;
  {
    nn::Linear first(100, 300);
    nn::Linear second(300, 7);
    std::vector<nn::NamedParameter> parameters = first->named_parameters();
    for (auto& parameter : second->named_parameters()) parameters.push_back(parameter);
    optim::AdamW optimizer(parameters, {});
    for (int step = 0; step < 2; ++step) {
      const Tensor x = Tensor::full({32, 100}, 0.5, float32, device);
      const Tensor loss = mean(gelu(second(gelu(first(x)))));
      (void)loss.item();
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    counts.stats = pool->stats();
    counts.parameters = 4 * (100 * 300 + 300 + 300 * 7 + 7);
    counts.gradients = counts.parameters;
    counts.optimizer = optimizer.state_bytes();
  }
  MemoryPool::set_current(before, device);
  return counts;
}

// The same code makes the same allocations: all figures of the pool equal the CPU's.
TEST(PlannedDevice, AStepCountsTheSameAsOnTheCpu) {
  const Counts real = train_on(Device::cpu());
  const Counts planned = train_on(Device::planned());
  EXPECT_EQ(planned.stats.in_use, real.stats.in_use);
  EXPECT_EQ(planned.stats.peak_in_use, real.stats.peak_in_use);
  EXPECT_EQ(planned.stats.reserved, real.stats.reserved);
  EXPECT_EQ(planned.stats.system_allocations, real.stats.system_allocations);
  EXPECT_EQ(planned.stats.use.bytes, real.stats.use.bytes);
  EXPECT_EQ(planned.stats.at_peak.bytes, real.stats.at_peak.bytes);
  EXPECT_EQ(planned.stats.at_peak.rounding, real.stats.at_peak.rounding);
  EXPECT_EQ(real.stats.use[MemoryKind::parameters], real.parameters);
  EXPECT_EQ(real.stats.use[MemoryKind::gradients], real.gradients);
  EXPECT_EQ(real.stats.use[MemoryKind::optimizer], real.optimizer);
  EXPECT_EQ(real.stats.use[MemoryKind::activations], 0u);
  EXPECT_GT(real.stats.at_peak[MemoryKind::activations], 0u);
}

// No worker thread, so that the order of calls determines the plan.
TEST(PlannedDevice, StreamsRunOnTheCallersThread) {
  Stream stream("planned", Device::planned());
  std::vector<int> order;
  const std::thread::id here = std::this_thread::get_id();
  const Event event = stream.enqueue([&] {
    order.push_back(1);
    EXPECT_EQ(std::this_thread::get_id(), here);
  });
  order.push_back(2);
  EXPECT_TRUE(event.done());
  StallClock clock(Device::planned());
  clock.join(event);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_GE(clock.seconds(), 0.0);
}

}  // namespace
}  // namespace tessera
