// Each wait between the schedule's queues is needed: without it, the access checker finds unordered
// accesses. Under the thread sanitizer the sanitizer finds them, and the checker, whose lock would
// order the threads, is off: CTest then expects the sanitizer's report.
#include <algorithm>
#include <optional>
#include <string>

#include "emulator/cuda/drop_waits.h"
#include "emulator/runtime/checker.h"
#include "engine/device/queue.h"
#include "sharding/sharding_testing.h"
#include "support/sanitizers.h"

namespace tessera {
namespace {

constexpr bool checks_accesses = !testing::thread_sanitizer;

struct Wait {
  std::string waiting, recording;
};

// The conflicts in two steps on two ranks under FULL_SHARD, or on four under HYBRID_SHARD, without
// the waits of `dropped`. An earlier step allocates the buffers, and waits on the host for that.
int conflicts_without(const std::optional<Wait>& dropped, bool hybrid = false) {
  namespace checker = emulator::checker;
  checker::set_enabled(checks_accesses);
  std::optional<emulator::DropWaits> drop;
  int conflicts = -1;
  int dropped_waits = 0;
  const auto program = [&](Context& context, testing::ToyTransformer& net, ShardedModel& model) {
    optim::Sgd optimizer(model.parameters(), {.lr = 0.01});
    const auto batch = testing::toy_batch(context.rank(), 1);
    const Tensor ids = batch.ids.to(context.device()), targets = batch.targets.to(context.device());
    const auto step = [&] {
      net.loss(ids, targets).backward();
      optimizer.step();
      optimizer.zero_grad();
    };
    step();
    current_queue(context.device()).synchronize();
    context.barrier();
    if (context.is_main()) {
      checker::reset();
      if (dropped) drop.emplace(dropped->waiting, dropped->recording);
    }
    context.barrier();
    step();
    step();
    current_queue(context.device()).synchronize();
    context.barrier();
    if (!context.is_main()) return;
    conflicts = checker::conflicts();
    if (drop) dropped_waits = drop->count();
    drop.reset();
  };
  const ShardingOptions options = hybrid ? testing::toy_options(Strategy::hybrid_shard, 2)
                                         : testing::toy_options(Strategy::full_shard);
  launch(
      hybrid ? 4 : 2,
      [&](Context& context) {
        manual_seed(3);
        testing::ToyTransformer net;
        ShardedModel model = fully_shard(net, context, options);
        program(context, net, model);
      },
      Device::cuda());
  if (dropped) {
    EXPECT_GT(dropped_waits, 0) << dropped->waiting << " never waits for " << dropped->recording;
  }
  checker::reset();
  return conflicts;
}

TEST(RemovedWait, NoneIsMissing) {
  EXPECT_EQ(conflicts_without(std::nullopt), 0);
  EXPECT_EQ(conflicts_without(std::nullopt, true), 0);
}

class RemovedWaitBetween : public ::testing::TestWithParam<Wait> {};
INSTANTIATE_TEST_SUITE_P(Queues, RemovedWaitBetween,
                         ::testing::Values(Wait{"compute", "gather"}, Wait{"gather", "compute"},
                                           Wait{"reduce", "compute"}, Wait{"compute", "reduce"},
                                           Wait{"all-reduce", "reduce"},
                                           Wait{"compute", "all-reduce"},
                                           Wait{"reduce", "all-reduce"}),
                         [](const auto& parameter) {
                           std::string name =
                               parameter.param.waiting + "_for_" + parameter.param.recording;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(RemovedWaitBetween, IsFound) {
  const bool between_copies =
      GetParam().waiting == "all-reduce" || GetParam().recording == "all-reduce";
  const int conflicts = conflicts_without(GetParam(), between_copies);
  if (checks_accesses) {
    EXPECT_GT(conflicts, 0);
  }
}

}  // namespace
}  // namespace tessera
