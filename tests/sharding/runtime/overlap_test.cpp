// Communication and computation that take equally long overlap: the real schedule's work, replayed
// on a machine whose links are exactly that slow (sharding/plan/plan_time.h). It runs in virtual
// time, so that other work on this machine does not affect the figures; bench/overlap_bench
// measures the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "sharding/plan/plan_time.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

constexpr std::int64_t deep_width = 256;
constexpr std::int64_t deep_rows = 2048;
constexpr int deep_layers = 24;

class Deep : public nn::Module {
 public:
  Deep() {
    register_parameter("scale", nn::make_parameter({deep_width}, nn::constant(1)));
    std::vector<nn::Linear> list;
    for (int i = 0; i < deep_layers; ++i) list.emplace_back(deep_width, deep_width);
    layers_ = register_module("layers", nn::ModuleList<nn::Linear>(std::move(list)));
  }
  [[nodiscard]] Tensor loss(Tensor x) const {
    x = x * parameter("scale");
    for (std::size_t i = 0; i < layers_->size(); ++i) x = (*layers_)[i](x);
    return sum(x);
  }

 private:
  nn::ModuleList<nn::Linear> layers_;
};

MemoryPlan plan_deep(const ShardingOptions& options, int ranks, int micro_batches = 1) {
  const DeviceGuard deferred(Device::meta());
  Deep net;
  PlanOptions what;
  what.sharding = options;
  what.micro_batches = micro_batches;
  what.loss = [&net](Device device) {
    return net.loss(Tensor::full({deep_rows, deep_width}, 1.0).to(device));
  };
  what.optimizer = [](std::vector<nn::NamedParameter> parameters) {
    return std::make_unique<optim::Sgd>(std::move(parameters), optim::SgdOptions{.lr = 0.1});
  };
  return plan(net, {.ranks = ranks, .device = DeviceType::cuda, .timed = true}, what);
}

// A GPU on which only products take time, and links without latency.
Cluster products_alone(int per_node, double inside, double across) {
  Cluster cluster;
  cluster.name = "virtual";
  cluster.device = DeviceType::cuda;
  cluster.per_node = per_node;
  cluster.matrix_rate = {{float32, 1e12}};
  cluster.memory_rate = 1e18;
  cluster.inside = {inside, 0.0};
  cluster.across = Link{across, 0.0};
  cluster.host_link = Link{1e18, 0.0};
  return cluster;
}

constexpr double at_once = 1e18;  // bytes per second

struct Overlap {
  double computation = 0;
  double step = 0;  // with communication that takes equally long
};

double predicted_seconds(const MemoryPlan& planned, int ranks, const Cluster& cluster) {
  return predict_step(*planned.step, {.ranks = ranks, .device = DeviceType::cuda}, cluster).seconds;
}

// The time of all collectives of a step, one after the other.
double communication_seconds(const MemoryPlan& planned, const Cluster& cluster) {
  double seconds = 0;
  for (const comm::RecordedCollective& call : planned.step->collectives)
    seconds += time_of(call, cluster).seconds();
  return seconds;
}

// With links of one kind on which a step's collectives take as long as its products.
Overlap overlap_of(const ShardingOptions& options, int ranks, int per_node, bool across) {
  const MemoryPlan planned = plan_deep(options, ranks);
  const auto linked = [&](double rate) {
    return products_alone(per_node, across ? at_once : rate, across ? rate : at_once);
  };
  Overlap overlap;
  overlap.computation = predicted_seconds(planned, ranks, linked(at_once));
  const double rate = communication_seconds(planned, linked(1.0)) / overlap.computation;
  overlap.step = predicted_seconds(planned, ranks, linked(rate));
  return overlap;
}

ShardingOptions deep_options(Strategy strategy = Strategy::full_shard) {
  ShardingOptions options;
  options.strategy = strategy;
  options.wrap = WrapPolicy::transformer({"Linear"});
  return options;
}

TEST(Overlap, AStepTakesLittleMoreThanTheLongerOfTheTwo) {
  const Overlap got = overlap_of(deep_options(), 4, 4, false);
  EXPECT_GT(got.computation, 0);
  EXPECT_LT(got.step, 1.15 * got.computation);
  EXPECT_GE(got.step, got.computation);
}

// Shows that the test can fail: without prefetching, a step waits for every gather.
TEST(Overlap, NeedsPrefetching) {
  ShardingOptions options = deep_options();
  options.forward_prefetch = false;
  options.backward_prefetch = BackwardPrefetch::none;
  const Overlap got = overlap_of(options, 4, 4, false);
  EXPECT_GT(got.step, 1.5 * got.computation);
}

TEST(Overlap, HoldsBetweenNodes) {
  ShardingOptions options = deep_options();
  const Overlap whole = overlap_of(options, 8, 4, true);
  EXPECT_LT(whole.step, 1.15 * whole.computation);
}

// The links inside a node are busy for as long as a step computes, and those between nodes for as
// long as its backward: sums between copies overlap with those within a copy, or the step would
// take a third longer.
TEST(Overlap, SumsBetweenCopiesOverlapThoseWithinOne) {
  ShardingOptions options = deep_options(Strategy::hybrid_shard);
  options.group_size = 4;
  const MemoryPlan planned = plan_deep(options, 8);
  const double computation = predicted_seconds(planned, 8, products_alone(4, at_once, at_once));
  const double inside =
      communication_seconds(planned, products_alone(4, 1.0, at_once)) / computation;
  const double across =
      communication_seconds(planned, products_alone(4, at_once, 1.0)) / (computation * 2 / 3);
  EXPECT_LT(predicted_seconds(planned, 8, products_alone(4, inside, across)), 1.15 * computation);
}

// Where a step waits for the links between nodes, a backward that gathers inside nodes takes less
// time, because it sends fewer bytes.
TEST(Overlap, ReshardingToANodeSavesTimeBetweenNodes) {
  const auto seconds = [](const ShardingOptions& options) {
    return predicted_seconds(plan_deep(options, 8), 8, products_alone(4, at_once, 1.0));
  };
  ShardingOptions options = deep_options();
  const double whole = seconds(options);
  options.reshard_after_forward = 4;
  const double part = seconds(options);
  // Each layer has a gather, a gather and a reduction; one of the gathers is saved: a third, except
  // for the bytes of the root.
  EXPECT_LT(part, 0.70 * whole);
  EXPECT_GT(part, 0.64 * whole);
}

}  // namespace
}  // namespace tessera
