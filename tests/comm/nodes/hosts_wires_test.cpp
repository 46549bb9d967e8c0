// Data encoded in fewer bits also cross between hosts in fewer bits: the same values as on one
// host, and a number of bytes by formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "comm/nodes/nodes_world.h"
#include "comm/nodes/pieces.h"
#include "comm/nodes/travelling.h"
#include "kernels/registry.h"
#include "sharding/memory/layouts.h"
#include "sharding/sharding_testing.h"
#include "tests/comm/shared/collective_cases.h"

namespace tessera::comm {
namespace {

using tessera::testing::Hosts;
using tessera::testing::ranks_of;
using tessera::testing::run_on_hosts;
using tessera::testing::ToyTransformer;
using Ranks = cases::Ranks;
using Bytes = std::vector<std::uint64_t>;

constexpr WireFormat formats[] = {WireFormat::bf16, WireFormat::int8, WireFormat::fp8_e4m3,
                                  WireFormat::fp8_e5m2};

// The bytes that each rank has sent to other hosts.
Bytes sent_by(const Hosts& hosts, const std::function<void(const Ranks&)>& fn) {
  Bytes bytes(static_cast<std::size_t>(ranks_of(hosts)));
  run_on_hosts(hosts, [&](const World&, const Ranks& ranks) {
    fn(ranks);
    bytes[static_cast<std::size_t>(ranks->rank())] = ranks->bytes_between_hosts();
    ranks->barrier();
  });
  return bytes;
}

// ---- gathers

// Shards of several pieces, and of parts of a block: fp32, bf16, and one without an encoding.
std::vector<GatheredRange> ranges_for(std::size_t ranks, WireFormat wire) {
  const std::size_t large = 150'001 * ranks * 4, middle = 40 * ranks * 2, small = 12 * ranks;
  const std::size_t gap = 64;
  return {{gap, large, wire, float32},
          {2 * gap + large, small, WireFormat::same, float32},
          {3 * gap + large + small, middle, wire == WireFormat::bf16 ? WireFormat::same : wire,
           bfloat16},
          {4 * gap + large + small + middle, 0, wire, float32}};
}

std::vector<std::byte> share_of(const GatheredRange& range, std::size_t ranks, int rank) {
  const auto count = static_cast<std::int64_t>(range.bytes / ranks / size_of(range.dtype));
  return cases::contribution_of(rank, count, {.in_dtype = range.dtype, .wire = range.wire}, 31);
}

void check_encoded_gather(const Ranks& ranks, WireFormat wire) {
  const auto size = static_cast<std::size_t>(ranks->size());
  const std::vector<GatheredRange> ranges = ranges_for(size, wire);
  auto buffer =
      ranks->allocate("encoded", ranges.back().first + ranges.back().bytes, Sharing::one_copy);
  const auto place_of = [&](const GatheredRange& range, int rank) {
    return buffer->data() + range.first + static_cast<std::size_t>(rank) * (range.bytes / size);
  };
  for (int round = 0; round < 2; ++round) {
    ranks->acquire(*buffer);
    for (const GatheredRange& range : ranges) {
      const auto share = share_of(range, size, ranks->rank());
      std::copy(share.begin(), share.end(), place_of(range, ranks->rank()));
    }
    ranks->all_gather(*buffer, ranges, {});
    for (const GatheredRange& range : ranges) {
      for (int rank = 0; rank < ranks->size(); ++rank) {
        const auto share = share_of(range, size, rank);
        EXPECT_TRUE(std::equal(share.begin(), share.end(), place_of(range, rank)))
            << name_of(wire) << ", " << range.bytes << " bytes, of rank " << rank;
      }
    }
    buffer->release();
  }
}

TEST(HostsWires, AGatherSendsTheFormatsBytesOnceToEachHost) {
  for (const Hosts& hosts : {Hosts{2, 2}, Hosts{1, 1, 1}, Hosts{3, 1}}) {
    const std::uint64_t others = hosts.size() - 1;
    for (const WireFormat wire : formats) {
      const std::uint64_t narrow = wire == WireFormat::bf16 ? 40 * 2 : 40 + 2;
      const std::uint64_t wide = wire == WireFormat::bf16 ? 150'001 * 2 : 150'001 + 4688;
      const Bytes expected(static_cast<std::size_t>(ranks_of(hosts)),
                           2 * others * (wide + 12 + narrow));
      EXPECT_EQ(sent_by(hosts, [&](const Ranks& ranks) { check_encoded_gather(ranks, wire); }),
                expected)
          << name_of(wire);
    }
  }
}

// ---- sums

// With any cut, of parts of a block and of several pieces.
TEST(HostsWires, SumsOfEncodedDataAreTheTree) {
  for (const Hosts& hosts : {Hosts{1, 1}, Hosts{2, 2}, Hosts{1, 2}, Hosts{1, 1, 1}}) {
    run_on_hosts(hosts, [](const World&, const Ranks& ranks) {
      for (const WireFormat wire : {WireFormat::bf16, WireFormat::int8}) {
        for (const std::int64_t count : {0, 7, 333, 400'001}) {
          cases::check_reductions(ranks, count, {.scale = 0.5f, .accumulate = true, .wire = wire},
                                  11);
        }
        cases::check_reductions(
            ranks, 1000, {.in_dtype = bfloat16, .out_dtype = bfloat16, .wire = WireFormat::int8},
            12);
      }
    });
  }
}

// A host sends encoded contributions, or their fp32 sum if that has fewer bytes.
TEST(HostsWires, ASumSendsTheFormatsBytes) {
  const std::int64_t count = 24 * 1024;
  const auto sent = [&](const Hosts& hosts, DType dtype, WireFormat wire) {
    return sent_by(hosts, [&](const Ranks& ranks) {
      auto buffer = ranks->allocate("gradients", static_cast<std::size_t>(count) * size_of(dtype),
                                    Sharing::per_rank);
      const std::int64_t share = count / ranks->size();
      std::vector<float> out(static_cast<std::size_t>(share));
      ranks->acquire(*buffer);
      ranks->reduce_scatter(*buffer, {{ranks->rank() * share, share, out.data()}},
                            {.in_dtype = dtype, .wire = wire}, {});
    });
  };
  const std::uint64_t n = 24 * 1024;
  EXPECT_EQ(sent({1, 1}, float32, WireFormat::int8), Bytes(2, n / 2 / 32 * 33));
  EXPECT_EQ(sent({1, 1}, bfloat16, WireFormat::int8), Bytes(2, n / 2 / 32 * 33));
  EXPECT_EQ(sent({1, 1, 1}, float32, WireFormat::bf16), Bytes(3, 2 * n / 3 * 2));
  EXPECT_EQ(sent({2, 2}, float32, WireFormat::int8), Bytes(4, 2 * n / 4 / 32 * 33));
  EXPECT_EQ(sent({2, 2}, float32, WireFormat::bf16), Bytes(4, n / 4 * 4));
  EXPECT_EQ(sent({4, 4}, float32, WireFormat::int8), Bytes(8, n / 8 * 4));
}

TEST(HostsWires, AnAllReduceSendsTheFormatsBytesAndSumsBack) {
  const std::int64_t count = 64 * 1000;
  const Bytes sent = sent_by({1, 1}, [&](const Ranks& ranks) {
    auto buffer = ranks->allocate("gradients", 64'000 * 4, Sharing::per_rank);
    std::vector<float> out(64'000);
    ranks->acquire(*buffer);
    ranks->all_reduce(*buffer, count, out.data(), {.wire = WireFormat::int8}, {});
  });
  EXPECT_EQ(sent, Bytes(2, 32'000 / 32 * 33 + 32'000 * 4));
}

TEST(HostsWires, PiecesOfEncodedDataAreWholeBlocks) {
  struct Cut {
    std::int64_t first, count;
  };
  const std::vector<Cut> ranges{{5, 200}, {205, 3}, {320, 64}};
  Pieces<std::vector<Cut>> pieces(ranges, 64, 32);
  std::vector<std::pair<std::int64_t, std::int64_t>> cuts;
  while (const auto piece = pieces.next()) cuts.emplace_back(piece->first, piece->count);
  EXPECT_EQ(cuts, (decltype(cuts){{5, 27}, {32, 64}, {96, 64}, {160, 45}, {205, 3}, {320, 64}}));
}

// ---- steps of training

struct Traffic {
  std::uint64_t between_hosts = 0, bytes = 0;
};

// The traffic of each rank in the second step.
std::vector<Traffic> traffic_of_step(const Hosts& hosts, const ShardingOptions& options) {
  std::vector<Traffic> traffic(static_cast<std::size_t>(ranks_of(hosts)));
  run_on_hosts(hosts, [&](const World& world, const Ranks& ranks) {
    Context context(world, ranks);
    const tessera::testing::OneThread one_thread;
    manual_seed(5);
    ToyTransformer net;
    ShardedModel model = fully_shard(net, context, options);
    optim::Sgd optimizer(model.parameters(), {.lr = 1e-2});
    for (int step = 0; step < 2; ++step) {
      const CommunicationStatistics before = model.communication();
      tessera::testing::train_once(context, net);
      optimizer.step();
      optimizer.zero_grad();
      const CommunicationStatistics after = model.communication();
      traffic[static_cast<std::size_t>(context.rank())] = {
          after.bytes_between_hosts - before.bytes_between_hosts, after.bytes - before.bytes};
    }
  });
  return traffic;
}

double bytes_of_element(WireFormat wire) {
  return wire == WireFormat::same ? 4.0 : wire == WireFormat::bf16 ? 2.0 : 33.0 / 32.0;
}

// FULL_SHARD: two gathers per unit, one for the root and the last unit, and a reduction for each.
// On hosts of one rank the bytes that cross are those that the ranks count.
TEST(HostsWires, BytesOfAStepFollowTheFormula) {
  const WireFormat wires[][2] = {{WireFormat::same, WireFormat::same},
                                 {WireFormat::bf16, WireFormat::int8},
                                 {WireFormat::int8, WireFormat::bf16},
                                 {WireFormat::int8, WireFormat::int8}};
  for (const Hosts& hosts : {Hosts{2, 2}, Hosts{1, 1, 1}}) {
    const int world = ranks_of(hosts);
    const auto others = static_cast<double>(hosts.size() - 1);
    for (const auto& [gathers, reduces] : wires) {
      ShardingOptions options = tessera::testing::toy_options(Strategy::full_shard);
      options.gather_wire = gathers;
      options.reduce_wire = reduces;
      ToyTransformer net;
      const auto units = tessera::testing::expected_units(net, options.wrap, options.param_dtype);
      // One fp32 per host, or the contribution of each of its ranks.
      const double summed = std::min(4.0, hosts.front() * bytes_of_element(reduces));
      double expected = 0;
      for (std::size_t i = 0; i < units.size(); ++i) {
        const auto elements = static_cast<double>(units[i].layout(world).share_bytes()) / 4;
        const int times = i == 0 || i + 1 == units.size() ? 1 : 2;
        expected += others * elements * (times * bytes_of_element(gathers) + summed);
      }
      for (const Traffic& traffic : traffic_of_step(hosts, options)) {
        EXPECT_EQ(static_cast<double>(traffic.between_hosts), expected)
            << name_of(gathers) << ", " << name_of(reduces) << " on " << hosts.size() << " hosts";
        if (hosts.front() == 1) {
          EXPECT_EQ(traffic.between_hosts, traffic.bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::comm
