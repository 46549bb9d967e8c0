// The times of kernels and collectives that run alone.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "sharding/plan/plan_time.h"

namespace tessera {
namespace {

// A GPU's product is cut into tiles of this side, one at a time for each multiprocessor; a deep
// product of few tiles is also cut along its depth.
constexpr double tile = 128;
constexpr double least_depth = 512;  // of a part
constexpr double ramp_depth = 64;    // steps for the begin and end of a tile

// Bytes a second of TCP between processes of one node. Not a published figure: assumed as the rate
// at which one core copies into and out of its sockets.
constexpr double loopback_rate = 3e9;

double as_real(std::int64_t count) {
  return static_cast<double>(count);
}
double steps_of_a_tree(int ranks) {
  return ranks <= 1 ? 0 : std::ceil(std::log2(static_cast<double>(ranks)));
}

// The fraction of the rate of large products that this shape reaches.
double shape_efficiency(const KernelWork& work, const Cluster& cluster) {
  if (cluster.multiprocessors == 0) return 1;
  const double rows = std::ceil(as_real(work.m) / tile);
  const double columns = std::ceil(as_real(work.n) / tile);
  const double edges = (as_real(work.m) / (rows * tile)) * (as_real(work.n) / (columns * tile));
  const double tiles = rows * columns * as_real(work.batch);
  const double processors = cluster.multiprocessors;
  const double parts = std::clamp(
      std::min(std::floor(processors / tiles), as_real(work.k) / least_depth), 1.0, 16.0);
  const double waves = std::ceil(tiles * std::floor(parts) / processors);
  const double filled = tiles * std::floor(parts) / (waves * processors);
  const double depth = as_real(work.k) / std::floor(parts);
  return std::max(1e-3, edges * filled * depth / (depth + ramp_depth));
}

double rate_of(const Cluster& cluster, DType dtype) {
  const auto found = cluster.matrix_rate.find(dtype);
  TESSERA_CHECK(found != cluster.matrix_rate.end(), ErrorCode::configuration,
                "cluster {}: matrix_rate has no {}, in which this recipe computes", cluster.name,
                name_of(dtype));
  return found->second;
}

// Similar shapes get near places; their measured times are near each other.
std::array<double, 3> place_of(const KernelWork& work) {
  const auto log2 = [](double value) { return std::log2(std::max(value, 1.0)); };
  switch (nature_of(work.kernel)) {
    case KernelNature::product:
      return {log2(as_real(work.m * work.batch)), log2(as_real(work.n)), log2(as_real(work.k))};
    case KernelNature::attention:
      return {log2(as_real(work.batch)), log2(as_real(work.m)), log2(as_real(work.k))};
    case KernelNature::memory:
    case KernelNature::own:
      break;
  }
  return {log2(work.bytes), 0, 0};
}

double amount_of(const KernelWork& work) {
  return nature_of(work.kernel) == KernelNature::memory ? work.bytes : work.operations;
}

// The measured number of ranks that most resembles `ranks` at work on a node: the same, or the next
// larger one, or the largest one there is.
int measured_ranks(const Cluster& cluster, const KernelWork& work, int ranks) {
  int above = std::numeric_limits<int>::max();
  int most = 0;
  for (const MeasuredKernel& one : cluster.measured) {
    if (one.work.kernel != work.kernel || one.work.dtype != work.dtype) continue;
    if (one.ranks >= ranks) above = std::min(above, one.ranks);
    most = std::max(most, one.ranks);
  }
  return above == std::numeric_limits<int>::max() ? most : above;
}

// The mean rate of the measurements, weighted by their nearness; 0 when there are none.
double measured_rate(const Cluster& cluster, const KernelWork& work, int ranks) {
  const int like = measured_ranks(cluster, work, ranks);
  const std::array<double, 3> here = place_of(work);
  double weights = 0;
  double sum = 0;
  for (const MeasuredKernel& one : cluster.measured) {
    if (one.work.kernel != work.kernel || one.work.dtype != work.dtype || one.ranks != like)
      continue;
    const std::array<double, 3> there = place_of(one.work);
    double distance = 1e-4;
    for (std::size_t i = 0; i < here.size(); ++i) {
      distance += (here[i] - there[i]) * (here[i] - there[i]);
    }
    const double weight = 1 / (distance * distance);
    weights += weight;
    sum += weight * std::log(amount_of(one.work) / one.seconds);
  }
  return weights == 0 ? 0 : std::exp(sum / weights);
}

// The distribution of a group's members: `members` on each of `nodes`.
struct Spread {
  int members, nodes;
};
Spread spread_of(const comm::RecordedCollective& collective, const Cluster& cluster) {
  if (collective.one_memory) return {collective.ranks, 1};  // whatever the number of its cores
  const int apart = std::max(1, cluster.per_node / std::max(1, collective.stride));
  const int members = std::min(collective.ranks, apart);
  return {members, (collective.ranks + members - 1) / members};
}

Link across_of(const Cluster& cluster, const Spread& spread) {
  if (spread.nodes == 1) return {1, 0};
  TESSERA_CHECK(cluster.across.has_value(), ErrorCode::configuration,
                "cluster {}: a world of more than one node of {} needs `across`, the link between "
                "nodes",
                cluster.name, cluster.per_node);
  return *cluster.across;
}

// In one memory an all-gather only publishes, and a sum reads every rank's part.
CollectiveTime time_in_memory(const comm::RecordedCollective& collective, const Cluster& cluster) {
  CollectiveTime time;
  time.latency = cluster.inside.latency;
  const double ranks = collective.ranks;
  const double wire = static_cast<double>(size_of(collective.dtype));
  const double sums = static_cast<double>(size_of(collective.sum_dtype));
  double moved = 0;
  if (collective.op == comm::Op::reduce_scatter) {
    moved = collective.bytes + collective.bytes / ranks / wire * sums;
  } else if (collective.op == comm::Op::all_reduce) {
    time.latency *= 2;
    moved = collective.bytes * (1 + 1 / ranks) + 2 * collective.bytes / wire * sums;
  } else if (collective.op == comm::Op::all_to_all) {
    moved = 2 * collective.bytes;
  }
  time.inside = moved / cluster.inside.rate;
  return time;
}

// Every rank's message goes to rank 0's node, and all of them go to every rank, over one network.
// That node uses the links of all its devices; processes of one node also reach each other by TCP,
// which does not use the links between devices.
CollectiveTime time_of_messages(const comm::RecordedCollective& collective,
                                const Cluster& cluster) {
  CollectiveTime time;
  const Spread spread = spread_of(collective, cluster);
  const double receivers = collective.one_memory ? 1 : collective.ranks;
  const double bytes = receivers * collective.bytes;
  if (spread.nodes == 1) {
    time.latency = 2 * cluster.inside.latency;
    time.inside = bytes / (collective.one_memory ? cluster.inside.rate
                                                 : std::min(cluster.inside.rate, loopback_rate));
    return time;
  }
  const Link across = across_of(cluster, spread);
  time.latency = 2 * across.latency;
  time.across = bytes / (std::min(cluster.per_node, collective.ranks) * across.rate);
  return time;
}

// Memory from one rank to each of the others, one after the other. In one memory the sender copies
// it in, and each of the others copies it out.
CollectiveTime time_of_sends(const comm::RecordedCollective& collective, const Cluster& cluster) {
  CollectiveTime time;
  if (collective.one_memory) {
    time.latency = cluster.inside.latency;
    time.inside = collective.ranks * collective.bytes / cluster.inside.rate;
    return time;
  }
  Spread spread = spread_of(collective, cluster);
  // The planned rank is the first of its node.
  if (collective.ranks == 2)
    spread = collective.stride < cluster.per_node ? Spread{2, 1} : Spread{1, 2};
  const Link across = across_of(cluster, spread);
  time.latency = spread.nodes > 1 ? across.latency : cluster.inside.latency;
  time.inside = (spread.members - 1) * collective.bytes / cluster.inside.rate;
  time.across = (collective.ranks - spread.members) * collective.bytes / across.rate;
  return time;
}

// Every rank sends each of the others a piece, all at the same time.
CollectiveTime time_of_all_to_all(const comm::RecordedCollective& collective,
                                  const Cluster& cluster) {
  CollectiveTime time;
  const Spread spread = spread_of(collective, cluster);
  const double piece = collective.bytes / collective.ranks;
  const Link across = across_of(cluster, spread);
  time.latency = spread.nodes > 1 ? across.latency : cluster.inside.latency;
  time.inside = (spread.members - 1) * piece / cluster.inside.rate;
  time.across = (collective.ranks - spread.members) * piece / across.rate;
  return time;
}

}  // namespace

CollectiveTime time_of(const comm::RecordedCollective& collective, const Cluster& cluster,
                       CollectiveAlgorithm algorithm) {
  CollectiveTime time;
  time.algorithm = algorithm;
  if (collective.ranks <= 1) return time;
  const Spread spread = spread_of(collective, cluster);
  const Link across = across_of(cluster, spread);
  const double ranks = collective.ranks;
  const double rounds = collective.op == comm::Op::all_reduce ? 2 : 1;
  const double bytes = rounds * collective.bytes;
  const double of_others = (ranks - 1) / ranks;
  const double of_other_nodes = static_cast<double>(spread.nodes - 1) / spread.nodes;
  TESSERA_REQUIRE(algorithm == CollectiveAlgorithm::ring || collective.op == comm::Op::all_reduce,
                  "only an all-reduce can use a tree");
  if (algorithm == CollectiveAlgorithm::ring) {
    time.latency = rounds * ((collective.ranks - spread.nodes) * cluster.inside.latency +
                             (spread.nodes - 1) * across.latency);
    time.inside = spread.members > 1 ? bytes * of_others / cluster.inside.rate : 0;
    // One ring for each member of a node: each byte enters a node once.
    time.across = bytes * of_other_nodes / (spread.members * across.rate);
    return time;
  }
  time.latency = rounds * (steps_of_a_tree(spread.members) * cluster.inside.latency +
                           steps_of_a_tree(spread.nodes) * across.latency);
  // In a tree whole sums pass through every rank.
  time.inside = spread.members > 1 ? bytes / cluster.inside.rate : 0;
  time.across = spread.nodes > 1 ? bytes / (spread.members * across.rate) : 0;
  return time;
}

CollectiveTime time_of(const comm::RecordedCollective& collective, const Cluster& cluster) {
  const bool message = collective.op == comm::Op::exchange ||
                       collective.op == comm::Op::broadcast || collective.op == comm::Op::barrier;
  if (message) return time_of_messages(collective, cluster);
  if (collective.op == comm::Op::send) return time_of_sends(collective, cluster);
  if (collective.one_memory) return time_in_memory(collective, cluster);
  if (collective.op == comm::Op::all_to_all && collective.ranks > 1) {
    return time_of_all_to_all(collective, cluster);
  }
  const CollectiveTime ring = time_of(collective, cluster, CollectiveAlgorithm::ring);
  if (collective.op != comm::Op::all_reduce) return ring;
  const CollectiveTime tree = time_of(collective, cluster, CollectiveAlgorithm::tree);
  return tree.seconds() < ring.seconds() ? tree : ring;
}

double time_of(const KernelWork& work, const Cluster& cluster, int ranks, int threads) {
  const double rate = work.kernel == KernelId::own_op ? 0 : measured_rate(cluster, work, ranks);
  if (rate > 0) {
    return amount_of(work) / rate + cluster.launch;
  }
  const double moving = work.bytes / (cluster.memory_rate * cluster.memory_efficiency * threads);
  double seconds = moving;
  switch (nature_of(work.kernel)) {
    case KernelNature::product:
      seconds = std::max(
          moving, work.operations / (rate_of(cluster, work.dtype) * cluster.matrix_efficiency *
                                     threads * shape_efficiency(work, cluster)));
      break;
    case KernelNature::attention:
      seconds = std::max(moving, work.operations / (rate_of(cluster, work.dtype) *
                                                    cluster.attention_efficiency * threads));
      break;
    case KernelNature::own:
      if (work.operations > 0) {
        seconds = std::max(moving, work.operations / (rate_of(cluster, work.dtype) *
                                                      cluster.attention_efficiency * threads));
      }
      break;
    case KernelNature::memory:
      break;
  }
  return cluster.device == DeviceType::cuda ? std::max(seconds, cluster.launch)
                                            : seconds + cluster.launch;
}

}  // namespace tessera
