// Ranks on several hosts compute the same bits as ranks on one host; only the necessary data cross
// between hosts.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/nodes/nodes_world.h"
#include "comm/nodes/travelling.h"
#include "comm/world.h"
#include "sharding/strategies/strategy_bits.h"
#include "support/sanitizers.h"
#include "tests/comm/shared/collective_cases.h"

namespace tessera::comm {
namespace {

using tessera::testing::Hosts;
using tessera::testing::ranks_of;
using tessera::testing::run_on_hosts;
using tessera::testing::thread_sanitizer;
using Ranks = cases::Ranks;

void run(const Hosts& hosts, const std::function<void(const Ranks&)>& fn) {
  run_on_hosts(hosts, [&](const World&, const Ranks& ranks) { fn(ranks); });
}

// The thread sanitizer checks every byte that a test compares. Under it, worlds with several ranks
// per host and hosts of different sizes are enough, still with buffers of several pieces.
std::vector<Hosts> shapes() {
  if (thread_sanitizer) return {{2, 2}, {3, 1, 2}};
  return {{1, 1}, {2, 2}, {3, 3}, {2, 2, 2}, {1, 1, 1, 1}, {1, 2}, {3, 1, 2}};
}
constexpr std::int64_t large_share = thread_sanitizer ? 100'001 : 1'200'001;

class RanksOnHosts : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Shapes, RanksOnHosts, ::testing::ValuesIn(shapes()),
                         [](const auto& shape) {
                           std::string name = "Of";
                           for (const int ranks : shape.param) name += std::to_string(ranks);
                           return name;
                         });

TEST_P(RanksOnHosts, AllGather) {
  run(GetParam(), [](const Ranks& ranks) {
    EXPECT_EQ(ranks->backend(), "shm+tcp");
    EXPECT_EQ(ranks->size(), ranks_of(GetParam()));
    for (const std::size_t share : {0, 1, 7, 4096, 50'000, 700'000}) {
      if (share < std::size_t{large_share}) cases::check_all_gather(ranks, share, 3);
    }
    cases::check_all_gather(ranks, 100, 3, 77);
    cases::check_gathered_ranges(ranks);
  });
}

TEST_P(RanksOnHosts, ReductionsAreTheTree) {
  run(GetParam(), [](const Ranks& ranks) { cases::check_all_reductions(ranks, 43); });
}

TEST_P(RanksOnHosts, LargeReductionsTakeSeveralPieces) {
  run(GetParam(), [](const Ranks& ranks) {
    cases::check_reductions(ranks, large_share, {.scale = 0.5f}, 3);
    cases::check_reductions(ranks, large_share, {.in_dtype = bfloat16, .out_dtype = bfloat16}, 4);
  });
}

TEST_P(RanksOnHosts, AllToAll) {
  run(GetParam(), cases::check_all_to_all);
}

TEST_P(RanksOnHosts, PointToPoint) {
  run(GetParam(), cases::check_point_to_point);
}
TEST_P(RanksOnHosts, Messages) {
  run(GetParam(), cases::check_messages);
}
TEST_P(RanksOnHosts, Groups) {
  run(GetParam(), cases::check_groups);
}
TEST_P(RanksOnHosts, DuplicatesOverlap) {
  run(GetParam(), cases::check_duplicates_overlap);
}
TEST_P(RanksOnHosts, SlowReaderIsWaitedFor) {
  run(GetParam(), cases::check_slow_reader_is_waited_for);
}

// A buffer exists once per host; of a gathered buffer each rank counts its part of its host's copy.
TEST(HostsMemory, AGatheredBufferExistsOncePerHost) {
  run({2, 2}, [](const Ranks& ranks) {
    const std::size_t before = ranks->held_bytes();
    auto buffer = ranks->allocate("gathered", 8192, Sharing::one_copy);
    EXPECT_EQ(ranks->held_bytes() - before, 4096u);
    ranks->acquire(*buffer);
    ranks->all_gather(*buffer, 8192, {});
    buffer->release();
    ranks->barrier();
  });
}

// ---- bytes between hosts

TEST(HostsTraffic, EachShardCrossesOncePerHost) {
  const std::size_t share = 10'000;
  for (const Hosts& hosts : {Hosts{2, 2}, Hosts{1, 3}, Hosts{2, 2, 2}}) {
    run(hosts, [&](const Ranks& ranks) {
      auto buffer = ranks->allocate("gathered", share * static_cast<std::size_t>(ranks->size()),
                                    Sharing::one_copy);
      ranks->acquire(*buffer);
      ranks->all_gather(*buffer, buffer->bytes(), {});
      buffer->release();
      EXPECT_EQ(ranks->bytes_between_hosts(), share * (hosts.size() - 1));
      ranks->barrier();
    });
  }
}

// A host sends the fp32 sum of its ranks' contributions if these are a subtree.
TEST(HostsTraffic, AHostSendsItsPartOfASum) {
  const std::int64_t count = 6000;
  const auto sent = [&](const Hosts& hosts, DType dtype, int group) {
    std::vector<std::uint64_t> bytes(static_cast<std::size_t>(ranks_of(hosts)));
    run(hosts, [&](const Ranks& ranks) {
      const auto rank = static_cast<std::size_t>(ranks->rank());
      auto buffer = ranks->allocate("gradients", static_cast<std::size_t>(count) * size_of(dtype),
                                    Sharing::per_rank);
      const std::int64_t share = count / ranks->size();
      std::vector<float> out(static_cast<std::size_t>(share));
      ranks->acquire(*buffer);
      ranks->reduce_scatter(*buffer, {{ranks->rank() * share, share, out.data()}},
                            {.in_dtype = dtype, .group = group}, {});
      bytes[rank] = ranks->bytes_between_hosts();
      ranks->barrier();
    });
    return bytes;
  };
  // Two hosts: half of the elements belong to the other host.
  using Bytes = std::vector<std::uint64_t>;
  const std::uint64_t quarter = 6000 / 4;
  EXPECT_EQ(sent({2, 2}, float32, 0), Bytes(4, quarter * 4));
  EXPECT_EQ(sent({2, 2}, bfloat16, 0), Bytes(4, quarter * 4));  // one fp32 for two bf16
  EXPECT_EQ(sent({2, 2}, float32, 4), Bytes(4, quarter * 4));
  EXPECT_EQ(sent({2, 2}, float32, 3), Bytes(4, quarter * 8));  // three ranks: not one host
  EXPECT_EQ(sent({1, 1}, bfloat16, 0), Bytes(2, 6000 / 2 * 2));
}

TEST(HostsTraffic, AGroupOfOneHostNeedsNoNetwork) {
  run({2, 2}, [](const Ranks& ranks) {
    auto host = ranks->split_blocks(2, "host");
    EXPECT_EQ(host->backend(), "shm");
    cases::check_all_gather(host, 1000, 3);
    cases::check_reductions(host, 1000, {}, 3);
    EXPECT_EQ(ranks->bytes_between_hosts(), 0u);
    auto across = ranks->split_across_blocks(2, "across");
    EXPECT_EQ(across->backend(), "shm+tcp");
    cases::check_all_gather(across, 1000, 3);
    EXPECT_EQ(ranks->bytes_between_hosts(), 3000u);
    ranks->barrier();
  });
}

// ---- sums over hosts

TEST(SumOverNodes, HostsThatAreSubtreesSendSums) {
  const auto of = [](const std::vector<int>& node_of, int group, DType dtype = float32) {
    return sum_over_nodes(Topology(node_of, 0), group, {dtype});
  };
  EXPECT_TRUE(of({0, 0, 1, 1}, 0).by_node);
  EXPECT_TRUE(of({0, 0, 1, 1, 2, 2}, 0).by_node);
  EXPECT_TRUE(of({0, 0, 1, 1}, 2).by_node);
  EXPECT_TRUE(of({0, 0, 0, 0, 1, 1, 1, 1}, 2).by_node);
  EXPECT_TRUE(of({0, 0, 0, 1, 1, 1}, 3).by_node);
  EXPECT_FALSE(of({0, 0, 0, 1, 1, 1}, 0).by_node);
  EXPECT_FALSE(of({0, 0, 0, 1, 1, 1}, 2).by_node);
  EXPECT_FALSE(of({0, 1, 0, 1}, 0).by_node);
  EXPECT_FALSE(of({0, 0, 1}, 0).by_node);
  EXPECT_FALSE(of({0, 1}, 0).by_node);
  EXPECT_TRUE(of({0, 0, 1, 1}, 0, bfloat16).by_node);
}

// Whole runs: two hosts of two ranks, and other shapes, compared with one host of as many ranks.
std::vector<Hosts> shapes_of_strategies() {
  if (thread_sanitizer) return {{2, 2}};
  return {{2, 2}, {3, 1}, {1, 1, 1}};
}
class StrategiesOnHosts : public ::testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(Shapes, StrategiesOnHosts, ::testing::ValuesIn(shapes_of_strategies()),
                         [](const auto& shape) {
                           std::string name = "Of";
                           for (const int ranks : shape.param) name += std::to_string(ranks);
                           return name;
                         });

void expect_the_bits_of_one_host(const Hosts& hosts, const ShardingOptions& with) {
  const int world = ranks_of(hosts);
  const tessera::testing::TrainingCase here{
      .name = "here", .dropout = 0.1, .micro_batches = 2, .max_norm = 1e-3};
  tessera::testing::TrainingCase there = here;
  there.name = "on hosts";
  there.launcher = [&](int, const std::function<void(Context&)>& fn) {
    run_on_hosts(hosts, [&](const World& described, const Ranks& ranks) {
      Context context(described, ranks);
      fn(context);
    });
  };
  for (ShardingOptions options : tessera::testing::all_strategies(world)) {
    options.param_dtype = with.param_dtype;
    options.gather_wire = with.gather_wire;
    options.reduce_wire = with.reduce_wire;
    if (row_of(options.strategy).shards == ShardGroup::world)
      options.reshard_after_forward = with.reshard_after_forward;
    EXPECT_TRUE(same_bits(tessera::testing::train_toy(world, options, here),
                          tessera::testing::train_toy(world, options, there)))
        << tessera::testing::describe(options);
  }
}

TEST_P(StrategiesOnHosts, GiveTheBitsOfOneHostInFloat32) {
  expect_the_bits_of_one_host(GetParam(), {});
}
TEST_P(StrategiesOnHosts, GiveTheBitsOfOneHostInBFloat16) {
  expect_the_bits_of_one_host(GetParam(), {.param_dtype = bfloat16});
}
// With data that cross in fewer bits.
TEST_P(StrategiesOnHosts, GiveTheBitsOfOneHostWithWires) {
  expect_the_bits_of_one_host(GetParam(),
                              {.gather_wire = WireFormat::int8, .reduce_wire = WireFormat::int8});
}
// Groups of consecutive ranks, of one host and across hosts.
TEST(StrategiesOnTwoHosts, GiveTheBitsOfOneHostWhenParametersReturnToTwoRanks) {
  for (const Hosts& hosts : shapes_of_strategies()) {
    if (ranks_of(hosts) == 4) expect_the_bits_of_one_host(hosts, {.reshard_after_forward = 2});
  }
}

}  // namespace
}  // namespace tessera::comm
