// The time of a planned step: the work that a plan has logged, replayed on a machine that need not
// exist.
//
// Every lane (the rank's thread, the compute queue, gather and reduce streams, the ways to the host
// and to files) runs its entries in their order and waits where the schedule waits. What runs at
// the same time and needs the same link, core or disk shares it. All ranks are taken to be alike,
// so nobody waits for a slower one.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/record/recorder.h"
#include "engine/planned/work_log.h"
#include "sharding/plan/cluster.h"
#include "sharding/plan/plan.h"

namespace tessera {

struct PlannedStep {
  WorkLog log;
  std::uint32_t compute = 0;  // the lane that kernels of forward and backward are in
  std::vector<comm::RecordedCollective> collectives;
};

// Seconds in which the compute lane stands still, by what it waits for.
struct ExposedSeconds {
  double gather_forward = 0;
  double gather_backward = 0;
  double reduce = 0;
  double all_reduce = 0;
  double transfer = 0;  // to and from the host's memory or files
  double other = 0;     // messages of the control plane, the host's own work
  [[nodiscard]] double total() const {
    return gather_forward + gather_backward + reduce + all_reduce + transfer + other;
  }
};

struct PredictedSpan {
  std::uint32_t lane = 0;
  double start = 0, end = 0;
  std::uint64_t entry = 0;  // of the log
};

struct PredictedStep {
  double seconds = 0;
  double compute = 0;  // of the compute lane at work: kernels, and copies in the device's memory
  ExposedSeconds exposed;
  // Of one rank: products and attention of forward and backward, without what runs again.
  double model_operations = 0;
  DType product_dtype = DType::float32;  // that most of them are in
  std::vector<PredictedSpan> spans;      // when they were asked for
};

enum class CollectiveAlgorithm : std::uint8_t { ring, tree };

// A collective alone on its links. What it takes is latency + max(inside, across).
struct CollectiveTime {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  double latency = 0;
  double inside = 0;  // seconds that the links inside of a node are busy
  double across = 0;  // and those between nodes
  [[nodiscard]] double seconds() const { return latency + (inside > across ? inside : across); }
};
// Of an all-reduction the faster of ring and tree, of the others the ring: NCCL has no tree for
// them. Error(configuration) where the cluster names no link that it needs.
CollectiveTime time_of(const comm::RecordedCollective& collective, const Cluster& cluster);
// The tree is an all-reduction's alone.
CollectiveTime time_of(const comm::RecordedCollective& collective, const Cluster& cluster,
                       CollectiveAlgorithm algorithm);

// A kernel alone on its device, `ranks` of a node at work, with `threads` of a CPU rank.
double time_of(const KernelWork& work, const Cluster& cluster, int ranks, int threads);

// Error(configuration) where the cluster lacks what the step needs: a link, a rate.
PredictedStep predict_step(const PlannedStep& step, const PlanWorld& world, const Cluster& cluster,
                           bool with_spans = false);

// torch's DataParallel, from the plan of one rank: one process drives `ranks` GPUs of a node. In
// each step GPU 0 sends its parameters (`parameter_bytes`) to the others and gets their gradients,
// both in the open, updates alone, and in the forward one thread launches at a time.
PredictedStep predict_data_parallel(const PlannedStep& one_rank, double parameter_bytes, int ranks,
                                    const Cluster& cluster);

}  // namespace tessera
