// Strategies give the bits of NO_SHARD on five to eight ranks.
#include "sharding/strategies/strategy_bits.h"

namespace tessera {
namespace {

class LargerWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, LargerWorlds, ::testing::Range(5, 9));

TEST_P(LargerWorlds, Float32) {
  for (const auto& what : testing::training_cases())
    testing::expect_equal_strategies(GetParam(), {}, what);
}

TEST_P(LargerWorlds, BFloat16) {
  for (const auto& what : testing::training_cases())
    testing::expect_equal_strategies(GetParam(), bfloat16, what);
}

}  // namespace
}  // namespace tessera
