// The time of a planned step: the plan's log of work is replayed on a machine that need not exist.
//
// Every lane (the rank's thread, the compute queue, gather and reduce streams, the paths to the
// host and to files) runs its entries in their order and waits where the schedule waits. Entries
// that run at the same time and need the same link, core or disk share it. The prediction assumes
// that all ranks are alike, so no rank waits for a slower one.
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

// Seconds in which the compute lane stands still, by the cause of the wait.
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
  double compute = 0;  // of the compute lane's work: kernels, and copies in the device's memory
  ExposedSeconds exposed;
  // One rank's products and attention of forward and backward, without recomputation.
  double model_operations = 0;
  DType product_dtype = DType::float32;  // of most of them
  std::vector<PredictedSpan> spans;      // if requested
};

enum class CollectiveAlgorithm : std::uint8_t { ring, tree };

// A collective alone on its links. Its time is latency + max(inside, across).
struct CollectiveTime {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  double latency = 0;
  double inside = 0;  // seconds that the links inside of a node are busy
  double across = 0;  // the same for links between nodes
  [[nodiscard]] double seconds() const { return latency + (inside > across ? inside : across); }
};
// For an all-reduce the faster of ring and tree, for the others the ring: NCCL has no tree for
// them. Error(configuration) when the cluster names no link that the collective needs.
CollectiveTime time_of(const comm::RecordedCollective& collective, const Cluster& cluster);
// Only an all-reduce can use the tree.
CollectiveTime time_of(const comm::RecordedCollective& collective, const Cluster& cluster,
                       CollectiveAlgorithm algorithm);

// A kernel alone on its device, `ranks` of a node at work, with `threads` of a CPU rank.
double time_of(const KernelWork& work, const Cluster& cluster, int ranks, int threads);

// Error(configuration) when the cluster lacks a value that the step needs: a link, a rate.
PredictedStep predict_step(const PlannedStep& step, const PlanWorld& world, const Cluster& cluster,
                           bool with_spans = false);

// torch's DataParallel, predicted from the plan of one rank: one process drives `ranks` GPUs of a
// node. In each step GPU 0 sends its parameters (`parameter_bytes`) to the others and gets their
// gradients, both exposed, and updates alone; in the forward, one thread launches the kernels of
// all GPUs one after the other.
PredictedStep predict_data_parallel(const PlannedStep& one_rank, double parameter_bytes, int ranks,
                                    const Cluster& cluster);

}  // namespace tessera
