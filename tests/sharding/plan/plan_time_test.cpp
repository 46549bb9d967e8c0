// The predicted time of a step, compared with cases that can be computed by hand.
#include "sharding/plan/plan_time.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tessera {
namespace {

// One operation or byte a second, so that times are amounts.
Cluster unit_rates() {
  Cluster cluster;
  cluster.name = "units";
  cluster.device = DeviceType::cuda;
  cluster.per_node = 4;
  cluster.matrix_rate = {{float32, 1.0}};
  cluster.memory_rate = 1.0;
  cluster.inside = {1.0, 0.0};
  cluster.across = Link{1.0, 0.0};
  cluster.host_link = Link{1.0, 0.0};
  return cluster;
}

comm::RecordedCollective recorded_call(comm::Op op, int ranks, double bytes,
                                       comm::Phase phase = comm::Phase::forward) {
  return {.phase = phase, .op = op, .unit = 0, .ranks = ranks, .stride = 1, .bytes = bytes};
}

// A rank with a compute lane and lanes for gathers and reductions.
class LoggedStep {
 public:
  LoggedStep() {
    compute_ = record_.log.add_lane("compute");
    gather_ = record_.log.add_lane("gather");
    reduce_ = record_.log.add_lane("reduce");
    record_.compute = compute_;
  }
  void compute(double seconds) { kernel(compute_, seconds); }
  void kernel(std::uint32_t lane, double bytes) {
    LoggedWork work;
    work.kind = LoggedWork::Kind::kernel;
    work.lane = lane;
    work.kernel.kernel = KernelId::binary;
    work.kernel.bytes = bytes;
    record_.log.add(work);
  }
  void collect(std::uint32_t lane, const comm::RecordedCollective& call) {
    LoggedWork work;
    work.kind = LoggedWork::Kind::outside;
    work.lane = lane;
    work.outside = record_.collectives.size();
    record_.collectives.push_back(call);
    record_.log.add(work);
  }
  void copy(std::uint32_t lane, LoggedWork::Kind kind, double bytes) {
    LoggedWork work;
    work.kind = kind;
    work.lane = lane;
    work.bytes = bytes;
    record_.log.add(work);
  }
  void wait(std::uint32_t lane, std::uint32_t for_lane) {
    record_.log.wait(lane, record_.log.end_of(for_lane));
  }
  [[nodiscard]] PredictedStep predict(const Cluster& cluster, int ranks = 4) const {
    return predict_step(record_, {.ranks = ranks, .device = cluster.device}, cluster, true);
  }
  [[nodiscard]] std::uint32_t computing() const { return compute_; }
  [[nodiscard]] std::uint32_t gathers() const { return gather_; }
  [[nodiscard]] std::uint32_t reductions() const { return reduce_; }

 private:
  PlannedStep record_;
  std::uint32_t compute_ = 0, gather_ = 0, reduce_ = 0;
};

// Four ranks gather 8 bytes at one byte per second: 6 come from other ranks.
TEST(PlanTime, AddsUpConsecutiveOperations) {
  LoggedStep step;
  step.collect(step.gathers(), recorded_call(comm::Op::all_gather, 4, 8));
  step.wait(step.computing(), step.gathers());
  step.compute(10);
  step.wait(step.reductions(), step.computing());
  step.collect(step.reductions(),
               recorded_call(comm::Op::reduce_scatter, 4, 8, comm::Phase::reduce));
  step.wait(step.computing(), step.reductions());
  const PredictedStep time = step.predict(unit_rates());
  EXPECT_DOUBLE_EQ(time.seconds, 6 + 10 + 6);
  EXPECT_DOUBLE_EQ(time.exposed.gather_forward, 6);
  EXPECT_DOUBLE_EQ(time.exposed.reduce, 6);
  EXPECT_DOUBLE_EQ(time.exposed.total(), 12);
}

TEST(PlanTime, HidesAGatherBehindALongerComputation) {
  LoggedStep step;
  step.compute(1);
  step.collect(step.gathers(), recorded_call(comm::Op::all_gather, 4, 8));
  step.compute(9);
  step.wait(step.computing(), step.gathers());
  step.compute(10);
  const PredictedStep time = step.predict(unit_rates());
  EXPECT_DOUBLE_EQ(time.seconds, 20);
  EXPECT_DOUBLE_EQ(time.exposed.total(), 0);
}

TEST(PlanTime, CountsOnlyTheRestOfAGatherThatIsPartlyHidden) {
  LoggedStep step;
  step.collect(step.gathers(), recorded_call(comm::Op::all_gather, 4, 8, comm::Phase::backward));
  step.compute(4);
  step.wait(step.computing(), step.gathers());
  step.compute(1);
  const PredictedStep time = step.predict(unit_rates());
  EXPECT_DOUBLE_EQ(time.seconds, 7);
  EXPECT_DOUBLE_EQ(time.exposed.gather_backward, 2);
}

// 6 seconds each on the same link: together 12, and both end then.
TEST(PlanTime, SharesALinkBetweenCollectivesAtTheSameTime) {
  LoggedStep step;
  step.collect(step.gathers(), recorded_call(comm::Op::all_gather, 4, 8));
  step.collect(step.reductions(),
               recorded_call(comm::Op::reduce_scatter, 4, 8, comm::Phase::reduce));
  step.wait(step.computing(), step.gathers());
  step.compute(1);
  step.wait(step.computing(), step.reductions());
  EXPECT_DOUBLE_EQ(step.predict(unit_rates()).seconds, 13);
}

// The two directions of the host link are independent.
TEST(PlanTime, CopiesToTheHostAndFromItAtTheSameTime) {
  LoggedStep step;
  step.copy(step.gathers(), LoggedWork::Kind::to_device, 5);
  step.copy(step.reductions(), LoggedWork::Kind::to_host, 5);
  step.wait(step.computing(), step.gathers());
  step.wait(step.computing(), step.reductions());
  const PredictedStep time = step.predict(unit_rates());
  EXPECT_DOUBLE_EQ(time.seconds, 5);
  EXPECT_DOUBLE_EQ(time.exposed.transfer, 5);
}

// This also applies where the compute lane runs them.
TEST(PlanTime, CountsATransferInTheComputeLaneAsOne) {
  Cluster cluster = unit_rates();
  cluster.disk_read = 1.0;
  LoggedStep step;
  step.compute(3);
  step.copy(step.computing(), LoggedWork::Kind::file_read, 5);
  step.copy(step.computing(), LoggedWork::Kind::to_host, 4);
  step.copy(step.computing(), LoggedWork::Kind::copy, 2);
  const PredictedStep time = step.predict(cluster, 1);
  EXPECT_DOUBLE_EQ(time.compute, 3 + 2);
  EXPECT_DOUBLE_EQ(time.exposed.transfer, 5 + 4);
  EXPECT_DOUBLE_EQ(time.seconds, 14);
}

// Two threads of a CPU rank with one core: each runs at half its rate while both run.
TEST(PlanTime, SharesACoreBetweenARanksThreads) {
  Cluster cluster = unit_rates();
  cluster.device = DeviceType::cpu;
  PlannedStep record;
  const std::uint32_t side = record.log.add_lane("gather");
  for (const std::uint32_t lane : {side, WorkLog::host}) {
    LoggedWork work;
    work.kind = LoggedWork::Kind::kernel;
    work.lane = lane;
    work.kernel.kernel = KernelId::binary;
    work.kernel.bytes = lane == side ? 2 : 5;
    record.log.add(work);
  }
  record.compute = WorkLog::host;
  const auto seconds = [&](int ranks) {
    return predict_step(record, {.ranks = ranks, .device = DeviceType::cpu}, cluster).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(4), 7);  // four cores: one each
  EXPECT_DOUBLE_EQ(seconds(2), 5);
}

// With n ranks a ring has n - 1 steps, a tree two times log n; a ring moves fewer bytes of a sum.
TEST(PlanTime, TakesATreeForSmallSumsAndARingForLargeOnes) {
  Cluster cluster = unit_rates();
  cluster.per_node = 64;
  cluster.inside = {1e9, 1e-6};
  const auto small = recorded_call(comm::Op::all_reduce, 64, 1e3);
  const auto large = recorded_call(comm::Op::all_reduce, 64, 1e9);
  EXPECT_EQ(time_of(small, cluster).algorithm, CollectiveAlgorithm::tree);
  EXPECT_EQ(time_of(large, cluster).algorithm, CollectiveAlgorithm::ring);
  const CollectiveTime ring = time_of(large, cluster, CollectiveAlgorithm::ring);
  EXPECT_NEAR(ring.latency, 2 * 63e-6, 1e-12);
  EXPECT_NEAR(ring.inside, 2.0 * 63 / 64, 1e-9);
  const CollectiveTime tree = time_of(small, cluster, CollectiveAlgorithm::tree);
  EXPECT_NEAR(tree.latency, 2 * 6e-6, 1e-12);
  EXPECT_NEAR(tree.inside, 2e-6, 1e-12);
}

// However short they are: NCCL gathers and scatters only along rings.
TEST(PlanTime, GathersAndScattersAlongARing) {
  Cluster cluster = unit_rates();
  cluster.per_node = 64;
  cluster.inside = {1e9, 1e-6};
  for (const comm::Op op : {comm::Op::all_gather, comm::Op::reduce_scatter}) {
    const CollectiveTime time = time_of(recorded_call(op, 64, 1e3), cluster);
    EXPECT_EQ(time.algorithm, CollectiveAlgorithm::ring);
    EXPECT_NEAR(time.latency, 63e-6, 1e-12);
  }
}

// 8 ranks on two nodes of 4 send 10 bytes each way to every rank: 80 over the four ranks' parts of
// the network of rank 0's host. Within a node they use its TCP, whatever links its GPUs have.
TEST(PlanTime, SendsMessagesOverTheHostsNetwork) {
  Cluster cluster = unit_rates();
  cluster.inside = {300e9, 0.0};
  cluster.across = Link{1.0, 0.5};
  const CollectiveTime apart = time_of(recorded_call(comm::Op::exchange, 8, 10), cluster);
  EXPECT_DOUBLE_EQ(apart.across, 80.0 / 4);
  EXPECT_DOUBLE_EQ(apart.latency, 1);
  const CollectiveTime together = time_of(recorded_call(comm::Op::exchange, 4, 3e9), cluster);
  EXPECT_DOUBLE_EQ(together.inside, 4);
  EXPECT_DOUBLE_EQ(together.across, 0);
}

// Two nodes of four: 3/4 of 7/8 of the bytes never leave a node, and each of the four rings carries
// a quarter of the rest.
TEST(PlanTime, EntersANodeOnceThroughAllOfItsLinks) {
  Cluster cluster = unit_rates();
  cluster.inside = {1e9, 0};
  cluster.across = Link{1.0, 0.5};
  const CollectiveTime time =
      time_of(recorded_call(comm::Op::all_gather, 8, 80), cluster, CollectiveAlgorithm::ring);
  EXPECT_NEAR(time.across, 80 * 0.5 / 4, 1e-12);
  EXPECT_NEAR(time.latency, 0.5, 1e-12);
  // Replicas on different nodes have one link each.
  auto replicas = recorded_call(comm::Op::all_reduce, 2, 80);
  replicas.stride = 4;
  const CollectiveTime apart = time_of(replicas, cluster, CollectiveAlgorithm::ring);
  EXPECT_DOUBLE_EQ(apart.inside, 0);
  EXPECT_NEAR(apart.across, 2 * 80 * 0.5, 1e-12);
}

// Memory from one rank to each of the others, one after the other.
TEST(PlanTime, SendsMemoryFromRankToRank) {
  Cluster cluster = unit_rates();
  cluster.inside = {10.0, 0.25};
  cluster.across = Link{1.0, 0.5};
  auto message = recorded_call(comm::Op::send, 2, 80);
  message.stride = 3;  // nodes of four
  EXPECT_DOUBLE_EQ(time_of(message, cluster).seconds(), 0.25 + 8);
  message.stride = 4;
  EXPECT_DOUBLE_EQ(time_of(message, cluster).inside, 0);
  EXPECT_DOUBLE_EQ(time_of(message, cluster).across, 80);
  EXPECT_DOUBLE_EQ(time_of(message, cluster).latency, 0.5);
  const CollectiveTime all = time_of(recorded_call(comm::Op::send, 8, 80), cluster);
  EXPECT_DOUBLE_EQ(all.inside, 3 * 8);
  EXPECT_DOUBLE_EQ(all.across, 4 * 80);
  // In one memory a copy in and a copy out.
  message.one_memory = true;
  EXPECT_DOUBLE_EQ(time_of(message, cluster).inside, 2 * 8);
}

TEST(PlanTime, RefusesNodesWithoutALinkBetweenThem) {
  Cluster cluster = unit_rates();
  cluster.across.reset();
  EXPECT_NO_THROW(time_of(recorded_call(comm::Op::all_gather, 4, 8), cluster));
  EXPECT_THROW(time_of(recorded_call(comm::Op::all_gather, 8, 8), cluster), Error);
}

// In shared memory the summing rank reads all ranks' parts, and a gather copies nothing.
TEST(PlanTime, HandlesRanksOfOneMemory) {
  const Cluster cluster = unit_rates();
  auto call = recorded_call(comm::Op::all_gather, 2, 1000);
  call.one_memory = true;
  EXPECT_DOUBLE_EQ(time_of(call, cluster).seconds(), 0);
  call.op = comm::Op::reduce_scatter;
  call.dtype = call.sum_dtype = float32;
  EXPECT_DOUBLE_EQ(time_of(call, cluster).seconds(), 1500);
  // More ranks than cores are still ranks of one host.
  call.ranks = 100;
  call.op = comm::Op::exchange;
  Cluster host = cluster;
  host.across.reset();
  EXPECT_DOUBLE_EQ(time_of(call, host).seconds(), 1000);
}

TEST(PlanTime, ComputesAProductAtItsRateAndItsBytesAtTheMemorys) {
  Cluster cluster = unit_rates();
  cluster.matrix_rate[float32] = 100;
  KernelWork product;
  product.kernel = KernelId::matmul;
  product.operations = 1000;
  product.bytes = 5;
  EXPECT_DOUBLE_EQ(time_of(product, cluster, 1, 1), 10);
  product.bytes = 50;
  EXPECT_DOUBLE_EQ(time_of(product, cluster, 1, 1), 50);
  product.dtype = bfloat16;
  EXPECT_THROW(time_of(product, cluster, 1, 1), Error);
}

// One tile more than the number of multiprocessors needs a second round.
TEST(PlanTime, CountsMultiprocessorsThatAProductLeavesIdle) {
  Cluster cluster = unit_rates();
  cluster.matrix_rate[float32] = 1e9;
  cluster.multiprocessors = 16;
  const auto product = [](std::int64_t m, std::int64_t n) {
    KernelWork work;
    work.kernel = KernelId::matmul;
    work.m = m;
    work.n = n;
    work.k = 1 << 20;
    work.operations = 2.0 * static_cast<double>(m * n * work.k);
    return work;
  };
  const double full = time_of(product(512, 512), cluster, 1, 1);
  const double over = time_of(product(640, 512), cluster, 1, 1);
  EXPECT_NEAR(over / full, 2, 0.01);
}

TEST(PlanTime, UsesMeasuredTimesWhereTheyExist) {
  Cluster cluster = unit_rates();
  MeasuredKernel measured;
  measured.work.kernel = KernelId::bias_gelu;
  measured.work.bytes = 1000;
  measured.seconds = 4;
  for (const int ranks : {1, 2}) {
    measured.ranks = ranks;
    measured.seconds = 4 * ranks;
    cluster.measured.push_back(measured);
  }
  KernelWork work = measured.work;
  EXPECT_NEAR(time_of(work, cluster, 1, 1), 4, 1e-9);
  EXPECT_NEAR(time_of(work, cluster, 2, 1), 8, 1e-9);
  work.bytes = 2000;
  EXPECT_NEAR(time_of(work, cluster, 1, 1), 8, 1e-9);
  work.kernel = KernelId::swiglu;  // not measured: at the memory's rate
  EXPECT_DOUBLE_EQ(time_of(work, cluster, 1, 1), 2000);
}

// Recomputation takes time, but its operations are not operations of the model.
TEST(PlanTime, CountsTheModelsOperationsWithoutRecomputation) {
  PlannedStep record;
  record.compute = record.log.add_lane("compute");
  LoggedWork work;
  work.kind = LoggedWork::Kind::kernel;
  work.lane = record.compute;
  work.kernel.kernel = KernelId::matmul;
  work.kernel.operations = 10;
  record.log.add(work);
  work.kernel.kernel = KernelId::attention_backward;
  work.kernel.operations = 50;
  work.kernel.recomputed = 10;
  record.log.add(work);
  const PredictedStep time =
      predict_step(record, {.ranks = 1, .device = DeviceType::cuda}, unit_rates());
  EXPECT_DOUBLE_EQ(time.model_operations, 10 + 40);
  EXPECT_DOUBLE_EQ(time.seconds, 60);
}

TEST(PlanTime, RefusesAClusterOfAnotherDevice) {
  Cluster cluster = unit_rates();
  cluster.device = DeviceType::cpu;
  EXPECT_THROW(predict_step(PlannedStep{}, {.ranks = 1, .device = DeviceType::cuda}, cluster),
               Error);
}

}  // namespace
}  // namespace tessera
