// Replays a step: lanes side by side, and the resources that they share.
#include "sharding/plan/plan_time.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "base/error.h"

namespace tessera {
namespace {

using Kind = LoggedWork::Kind;

constexpr double small_copy = 1 << 20;

enum class Resource : std::uint8_t { cores, inside, across, up, down, disk_read, disk_write };
constexpr std::size_t resource_count = 7;
// The part of each resource that an activity takes when it is alone.
using Demands = std::array<double, resource_count>;
double& of(Demands& demands, Resource resource) {
  return demands[static_cast<std::size_t>(resource)];
}

// An entry's time: `latency` without demands, and then `work` seconds with `demands`.
struct Cost {
  double latency = 0;
  double work = 0;
  Demands demands{};
};

struct LaneState {
  std::vector<std::size_t> entries;  // places in the log
  std::size_t next = 0;
  bool active = false;
  double latency = 0, work = 0;
  Demands demands{};
  double begun = 0;
};

class Costs {
 public:
  Costs(const PlannedStep& step, const PlanWorld& world, const Cluster& cluster)
      : step_(step), cluster_(cluster), on_cpu_(world.device == DeviceType::cpu) {
    ranks_ = std::min(world.ranks, on_cpu_ ? world.ranks : cluster.per_node);
    threads_ = on_cpu_ && world.ranks == 1 ? cluster.per_node : 1;
    // A CPU rank's part of its node's cores.
    cores_ = on_cpu_ ? static_cast<double>(cluster.per_node) / world.ranks : 1;
  }

  Cost of_entry(const LoggedWork& work) {
    switch (work.kind) {
      case Kind::kernel:
        return of_kernel(work);
      case Kind::copy:
        return of_copy(work);
      case Kind::to_device:
        return of_transfer(work.bytes, Resource::up);
      case Kind::to_host:
        return of_transfer(work.bytes, Resource::down);
      case Kind::file_read:
        return of_file(work.bytes, cluster_.disk_read, Resource::disk_read, "disk.read");
      case Kind::file_write:
        return of_file(work.bytes, cluster_.disk_write, Resource::disk_write, "disk.write");
      case Kind::outside:
        return of_collective(step_.collectives.at(work.outside));
      case Kind::wait:
        break;
    }
    return {};
  }

 private:
  // Side streams of a CPU rank have one thread.
  void take_cores(Cost& cost, std::uint32_t lane) const {
    if (!on_cpu_) return;
    of(cost.demands, Resource::cores) = (lane == step_.compute ? threads_ : 1) / cores_;
  }

  Cost of_kernel(const LoggedWork& work) {
    Cost cost;
    take_cores(cost, work.lane);
    const bool beside = on_cpu_ && work.lane != step_.compute;
    double& known = beside ? beside_[key_of(work.kernel)] : known_[key_of(work.kernel)];
    if (known == 0) {
      known = time_of(work.kernel, cluster_, ranks_, beside ? 1 : threads_);
    }
    cost.work = known;
    return cost;
  }

  Cost of_copy(const LoggedWork& work) const {
    Cost cost;
    take_cores(cost, work.lane);
    const double rate = cluster_.memory_rate * cluster_.memory_efficiency;
    cost.work = work.bytes / rate;
    if (!on_cpu_) cost.work = std::max(cost.work, cluster_.launch);
    return cost;
  }

  Cost of_transfer(double bytes, Resource way) const {
    // The copy of a loss or a batch of data takes almost no time on any link.
    if (!cluster_.host_link && bytes <= small_copy) return Cost{cluster_.inside.latency, 0, {}};
    TESSERA_CHECK(cluster_.host_link.has_value(), ErrorCode::configuration,
                  "cluster {}: this recipe copies between host and GPU, which needs `host_link`",
                  cluster_.name);
    Cost cost;
    cost.latency = cluster_.host_link->latency;
    cost.work = bytes / cluster_.host_link->rate;
    of(cost.demands, way) = 1;
    return cost;
  }

  Cost of_file(double bytes, const std::optional<double>& rate, Resource disk,
               const char* key) const {
    TESSERA_CHECK(rate.has_value(), ErrorCode::configuration,
                  "cluster {}: this recipe offloads to files, which needs `{}`", cluster_.name,
                  key);
    Cost cost;
    cost.work = bytes / *rate;
    of(cost.demands, disk) = ranks_;  // all ranks of a node, at the same time
    return cost;
  }

  Cost of_collective(const comm::RecordedCollective& collective) const {
    const CollectiveTime time = tessera::time_of(collective, cluster_);
    Cost cost;
    cost.latency = time.latency;
    cost.work = std::max(time.inside, time.across);
    if (cost.work == 0) return cost;
    if (collective.one_memory) {
      of(cost.demands, Resource::cores) = 1 / cores_;  // the summing thread
      return cost;
    }
    of(cost.demands, Resource::inside) = time.inside / cost.work;
    of(cost.demands, Resource::across) = time.across / cost.work;
    return cost;
  }

  struct Key {
    std::array<std::int64_t, 7> words;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      std::size_t hash = 0;
      for (const std::int64_t word : key.words) {
        hash = hash * 0x9E3779B97F4A7C15ULL + static_cast<std::size_t>(word) + (hash >> 29);
      }
      return hash;
    }
  };
  static Key key_of(const KernelWork& work) {
    std::int64_t bytes = 0;
    static_assert(sizeof bytes == sizeof work.bytes);
    std::memcpy(&bytes, &work.bytes, sizeof bytes);
    std::int64_t operations = 0;
    std::memcpy(&operations, &work.operations, sizeof operations);
    return {{static_cast<std::int64_t>(work.kernel) * 256 + static_cast<std::int64_t>(work.dtype),
             bytes, operations, work.m, work.n, work.k, work.batch}};
  }

  const PlannedStep& step_;
  const Cluster& cluster_;
  bool on_cpu_;
  int ranks_, threads_;
  double cores_;
  std::unordered_map<Key, double, Hash> known_, beside_;
};

class Replay {
 public:
  Replay(const PlannedStep& step, const PlanWorld& world, const Cluster& cluster, bool with_spans)
      : step_(step), costs_(step, world, cluster), with_spans_(with_spans) {
    lanes_.resize(step.log.lanes().size());
    const std::vector<LoggedWork>& entries = step.log.entries();
    for (std::size_t i = 0; i < entries.size(); ++i) lanes_[entries[i].lane].entries.push_back(i);
  }

  PredictedStep run() {
    for (;;) {
      start_what_can();
      const double next = until_next_change();
      if (next == std::numeric_limits<double>::infinity()) break;
      advance(next);
    }
    for (const LaneState& lane : lanes_) {
      TESSERA_REQUIRE(lane.next == lane.entries.size(), "a planned step's lanes deadlock");
    }
    result_.seconds = now_;
    count_operations();
    return std::move(result_);
  }

 private:
  [[nodiscard]] const LoggedWork& entry(const LaneState& lane) const {
    return step_.log.entries()[lane.entries[lane.next]];
  }
  // Counts all entries that the log ever had in the lane.
  [[nodiscard]] std::uint64_t done(std::uint32_t lane) const {
    return step_.log.lanes()[lane].first + lanes_[lane].next;
  }
  [[nodiscard]] bool may_begin(const LoggedWork& work) const {
    if (work.lane != WorkLog::host && done(WorkLog::host) < work.issued) return false;
    return work.kind != Kind::wait || done(work.until.lane) >= work.until.end;
  }

  void start_what_can() {
    for (bool again = true; again;) {
      again = false;
      for (LaneState& lane : lanes_) {
        while (!lane.active && lane.next < lane.entries.size() && may_begin(entry(lane))) {
          again = true;
          start(lane);
        }
      }
    }
  }

  void start(LaneState& lane) {
    const Cost cost = costs_.of_entry(entry(lane));
    if (cost.latency == 0 && cost.work == 0) {
      ++lane.next;
      return;
    }
    lane.active = true;
    lane.latency = cost.latency;
    lane.work = cost.work;
    lane.demands = cost.demands;
    lane.begun = now_;
  }

  [[nodiscard]] Demands all_demands() const {
    Demands sums{};
    for (const LaneState& lane : lanes_) {
      if (!lane.active || lane.latency > 0) continue;
      for (std::size_t i = 0; i < resource_count; ++i) sums[i] += lane.demands[i];
    }
    return sums;
  }
  // When the demand for a resource exceeds it, all activities get the same fraction.
  static double speed(const LaneState& lane, const Demands& asked) {
    double slowest = 1;
    for (std::size_t i = 0; i < resource_count; ++i) {
      if (lane.demands[i] > 0 && asked[i] > 1) slowest = std::min(slowest, 1 / asked[i]);
    }
    return slowest;
  }

  [[nodiscard]] double until_next_change() const {
    const Demands asked = all_demands();
    double next = std::numeric_limits<double>::infinity();
    for (const LaneState& lane : lanes_) {
      if (!lane.active) continue;
      next = std::min(next, lane.latency > 0 ? lane.latency : lane.work / speed(lane, asked));
    }
    return next;
  }

  void advance(double seconds) {
    const Demands asked = all_demands();
    count_compute(seconds);
    now_ += seconds;
    // An activity that ends now ends exactly: equal times must not leave one with a rounding error.
    const double rounding = 1e-12 + seconds * 1e-12;
    for (LaneState& lane : lanes_) {
      if (!lane.active) continue;
      if (lane.latency > 0) {
        lane.latency = lane.latency - seconds <= rounding ? 0 : lane.latency - seconds;
        if (lane.latency > 0 || lane.work > 0) continue;
      } else {
        lane.work -= seconds * speed(lane, asked);
        if (lane.work > rounding) continue;
      }
      if (with_spans_) {
        result_.spans.push_back({entry(lane).lane, lane.begun, now_,
                                 static_cast<std::uint64_t>(lane.entries[lane.next])});
      }
      lane.active = false;
      ++lane.next;
    }
  }

  void count_compute(double seconds) {
    const LaneState& lane = lanes_[step_.compute];
    const bool computes =
        lane.active && (entry(lane).kind == Kind::kernel || entry(lane).kind == Kind::copy);
    if (computes) {
      result_.compute += seconds;
      return;
    }
    exposed_for(blocking_entry()) += seconds;
  }

  // The cause of the compute lane's wait: the next communication in the lane that it waits for.
  [[nodiscard]] const LoggedWork* blocking_entry() const {
    std::uint32_t at = step_.compute;
    for (std::size_t hops = 0; hops <= lanes_.size(); ++hops) {
      const LaneState& lane = lanes_[at];
      if (lane.next == lane.entries.size()) break;
      const LoggedWork& work = entry(lane);
      if (lane.active || work.kind != Kind::wait) {
        if (!lane.active && at != WorkLog::host && done(WorkLog::host) < work.issued) {
          at = WorkLog::host;
          continue;
        }
        return next_communication(lane);
      }
      at = work.until.lane;
    }
    return nullptr;
  }
  [[nodiscard]] const LoggedWork* next_communication(const LaneState& lane) const {
    for (std::size_t i = lane.next; i < lane.entries.size(); ++i) {
      const LoggedWork& work = step_.log.entries()[lane.entries[i]];
      if (work.kind == Kind::wait) break;
      if (work.kind != Kind::kernel && work.kind != Kind::copy) return &work;
    }
    return nullptr;
  }

  double& exposed_for(const LoggedWork* work) {
    ExposedSeconds& exposed = result_.exposed;
    if (work == nullptr) return exposed.other;
    if (work->kind != Kind::outside) return exposed.transfer;
    const comm::RecordedCollective& collective = step_.collectives[work->outside];
    switch (collective.op) {
      case comm::Op::all_gather:
        return collective.phase == comm::Phase::backward ? exposed.gather_backward
                                                         : exposed.gather_forward;
      case comm::Op::reduce_scatter:
        return exposed.reduce;
      case comm::Op::all_reduce:
        return exposed.all_reduce;
      default:
        return exposed.other;
    }
  }

  void count_operations() {
    std::array<double, 8> by_dtype{};
    for (const LoggedWork& work : step_.log.entries()) {
      if (work.kind != Kind::kernel || work.again) continue;
      const double operations = work.kernel.operations - work.kernel.recomputed;
      result_.model_operations += operations;
      by_dtype[static_cast<std::size_t>(work.kernel.dtype)] += operations;
    }
    result_.product_dtype =
        static_cast<DType>(std::max_element(by_dtype.begin(), by_dtype.end()) - by_dtype.begin());
  }

  const PlannedStep& step_;
  Costs costs_;
  bool with_spans_;
  std::vector<LaneState> lanes_;
  double now_ = 0;
  PredictedStep result_;
};

}  // namespace

PredictedStep predict_step(const PlannedStep& step, const PlanWorld& world, const Cluster& cluster,
                           bool with_spans) {
  TESSERA_CHECK(cluster.device == world.device, ErrorCode::configuration,
                "cluster {} has {}, and the plan is for {}", cluster.name,
                cluster.device == DeviceType::cuda ? "GPUs" : "CPUs",
                world.device == DeviceType::cuda ? "GPUs" : "CPUs");
  return Replay(step, world, cluster, with_spans).run();
}

PredictedStep predict_data_parallel(const PlannedStep& one_rank, double parameter_bytes, int ranks,
                                    const Cluster& cluster) {
  TESSERA_CHECK(cluster.device == DeviceType::cuda && ranks <= cluster.per_node,
                ErrorCode::configuration,
                "cluster {}: dp is one process with the GPUs of a node, {} at most", cluster.name,
                cluster.device == DeviceType::cuda ? cluster.per_node : 0);
  PredictedStep step = predict_step(one_rank, {.ranks = 1, .device = DeviceType::cuda}, cluster);
  double launches = 0;
  for (const LoggedWork& work : one_rank.log.entries()) {
    if (work.kind != Kind::kernel || work.backward) continue;
    const double own = time_of(work.kernel, cluster, ranks, 1);
    launches += std::max(0.0, ranks * cluster.launch - own);
  }
  const double transfer =
      ranks == 1 ? 0 : parameter_bytes / cluster.inside.rate + (ranks - 1) * cluster.inside.latency;
  step.exposed.gather_forward += transfer;
  step.exposed.reduce += transfer;
  step.exposed.other += launches;
  step.seconds += launches + 2 * transfer;
  return step;
}

}  // namespace tessera
