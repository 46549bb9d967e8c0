// The time of a gather and the thread that runs it change no bit.
#include <gtest/gtest.h>

#include <cstdlib>

#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::same_bits;
using testing::toy_options;
using testing::train_toy;

// For a scope, the work of side streams runs on the caller. Set and reset it while no rank runs.
class SerialStreams {
 public:
  SerialStreams() { setenv("TESSERA_SERIAL_STREAMS", "1", 1); }
  ~SerialStreams() { unsetenv("TESSERA_SERIAL_STREAMS"); }
  SerialStreams(const SerialStreams&) = delete;
  SerialStreams& operator=(const SerialStreams&) = delete;
};

TEST(Prefetch, ChangesNoBit) {
  const testing::TrainingCase what{.dropout = 0.1, .micro_batches = 2, .max_norm = 0.05};
  constexpr int world = 3;
  const auto expected = train_toy(world, toy_options(Strategy::no_shard), what);
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    ShardingOptions options = toy_options(strategy);
    for (const auto backward :
         {BackwardPrefetch::none, BackwardPrefetch::pre, BackwardPrefetch::post}) {
      for (const bool forward : {false, true}) {
        options.backward_prefetch = backward;
        options.forward_prefetch = forward;
        const std::string text = testing::describe(options) + " backward " +
                                 std::to_string(static_cast<int>(backward)) + " forward " +
                                 std::to_string(forward);
        EXPECT_TRUE(same_bits(expected, train_toy(world, options, what))) << text;
        const SerialStreams serial;
        EXPECT_TRUE(same_bits(expected, train_toy(world, options, what))) << text << " serial";
      }
    }
  }
}

TEST(Prefetch, SerialStreamsWorkWithEveryStrategy) {
  const SerialStreams serial;
  const testing::TrainingCase what{.micro_batches = 2, .no_sync = true};
  const auto expected = train_toy(4, toy_options(Strategy::no_shard), what);
  for (const ShardingOptions& options : testing::all_strategies(4)) {
    EXPECT_TRUE(same_bits(expected, train_toy(4, options, what))) << testing::describe(options);
  }
}

// The time of side streams is counted, hidden or not.
TEST(Prefetch, TimeIsCounted) {
  launch(2, [](Context& context) {
    testing::ToyTransformer net;
    ShardedModel model = fully_shard(net, context, toy_options(Strategy::full_shard));
    for (int step = 0; step < 3; ++step) {
      const auto batch = testing::toy_batch(context.rank(), 2);
      net.loss(batch.ids, batch.targets).backward();
    }
    const auto statistics = model.communication();
    EXPECT_GT(statistics.busy_seconds, 0);
    EXPECT_GE(statistics.exposed_seconds, 0);
  });
}

}  // namespace
}  // namespace tessera
