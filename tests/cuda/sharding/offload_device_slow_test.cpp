// Every strategy on 1, 2 and 4 ranks that share a GPU, with state on the host, gives the same bits.
#include "cuda/sharding/offload_testing.h"

namespace tessera::testing {
namespace {

class OffloadStrategiesOnDevice : public OffloadOnDevice {};

// All state on the host, and one of the other placements in turn.
TEST_F(OffloadStrategiesOnDevice, EveryStrategyKeepsItsBits) {
  const std::vector<OffloadOptions> all = placements();
  std::size_t turn = 0;
  for (const int world : {1, 2, 4}) {
    for (const ShardingOptions& options : all_strategies(world)) {
      expect_offload_keeps_bits(world, options, {.micro_batches = 2, .max_norm = 1e-3},
                                {all.front(), all[1 + turn++ % (all.size() - 1)]});
    }
  }
}

}  // namespace
}  // namespace tessera::testing
