// When a GPU's memory is nearly used up: memory that pools and collectives keep for later is given
// to other users, and running out of memory is an error that can be caught.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "cuda/device_under_test.h"
#include "engine/cuda/arena.h"
#include "engine/device/backend.h"
#include "engine/device/memory.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

// The first use of a GPU in a program creates the arena, so these tests run in a program of their
// own, or are skipped.
class MemoryPressure : public ::testing::Test {
 protected:
  static constexpr std::size_t arena_bytes = 32 * mebibyte;

  static void SetUpTestSuite() { setenv("TESSERA_CUDA_MEMORY", "32M", 1); }
  static void TearDownTestSuite() { unsetenv("TESSERA_CUDA_MEMORY"); }
  void SetUp() override {
    const auto source = backend_of(DeviceType::cuda).memory_source(Device::cuda());
    if (dynamic_cast<const cuda::Arena&>(*source).bytes() != arena_bytes) {
      GTEST_SKIP() << "other tests have made a larger arena: run memory_pressure_test alone";
    }
  }

 private:
  const testing::AccessChecking access_checking_;
};

// Four units of one MiB each.
class FourLayers : public nn::Module {
 public:
  FourLayers() {
    for (int i = 0; i < 4; ++i) {
      layers_.push_back(register_module("l" + std::to_string(i),
                                        nn::Linear(512, 512, nn::LinearOptions{.bias = false})));
    }
  }
  static ShardingOptions options() { return {.wrap = WrapPolicy::list({"l0", "l1", "l2", "l3"})}; }
  [[nodiscard]] Tensor loss(const Tensor& x) const {
    Tensor y = x;
    for (const auto& layer : layers_) y = layer(y);
    return sum(y);
  }

 private:
  std::vector<nn::Linear> layers_;
};

void hoard(Device device, std::size_t bytes) {
  (void)Tensor::empty({static_cast<std::int64_t>(bytes)}, uint8, device);
}

std::vector<double> gradients_of(const ShardedModel& model) {
  return model.parameters().front().tensor.grad().to_vector();
}

// A rank's pool keeps most of the memory for later while collective memory is allocated, by the
// same rank and by another.
TEST_F(MemoryPressure, PoolsGiveWayToCollectiveMemory) {
  launch(
      2,
      [](Context& context) {
        const auto held = [&] { return MemoryPool::current(context.device())->stats().held; };
        if (context.is_main()) {
          hoard(context.device(), 26 * mebibyte);
          EXPECT_GE(held(), 26 * mebibyte);
        }
        context.barrier();
        manual_seed(3);
        FourLayers net;
        ShardedModel model = fully_shard(net, context, FourLayers::options());
        hoard(context.device(), 4 * mebibyte);
        context.barrier();
        const auto whole = model.unsharded();
        EXPECT_LT(held(), 26 * mebibyte);
      },
      Device::cuda());
}

// The whole parameters do not fit: all ranks get an error that can be caught, and training then
// continues as before.
TEST_F(MemoryPressure, AnUnshardedScopeThatDoesNotFitLeavesTheModelUsable) {
  launch(
      2,
      [](Context& context) {
        manual_seed(3);
        FourLayers net;
        ShardedModel model = fully_shard(net, context, FourLayers::options());
        optim::Sgd optimizer(model.parameters(), {.lr = 0});
        const Tensor x = Tensor::full({1, 512}, 1, float32, context.device());
        const auto step = [&] {
          net.loss(x).backward();
          const auto gradients = gradients_of(model);
          optimizer.step();
          optimizer.zero_grad();
          return gradients;
        };
        const auto expected = step();
        const auto buffers = model.communication().buffers;
        const auto bytes = model.communication().buffer_bytes;
        {
          std::vector<Tensor> ballast;  // all free memory, in pieces smaller than a unit
          if (context.is_main()) {
            try {
              for (;;) ballast.push_back(Tensor::empty({1 << 19}, uint8, context.device()));
            } catch (const Error& error) {
              EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
            }
            ballast.resize(ballast.size() - 2);  // one of the units fits
          }
          context.barrier();
          try {
            const auto whole = model.unsharded();
            ADD_FAILURE() << "everything fitted";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
          }
          context.barrier();
        }
        EXPECT_EQ(model.communication().buffers, buffers);
        EXPECT_EQ(model.communication().buffer_bytes, bytes);
        {
          const auto whole = model.unsharded();
          EXPECT_GT(model.communication().buffers, buffers);
        }
        EXPECT_EQ(step(), expected);
      },
      Device::cuda());
}

}  // namespace
}  // namespace tessera
