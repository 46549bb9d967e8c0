// The table of buffers.
#include "sharding/memory/buffer_plan.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_set>

#include "comm/nodes/travelling.h"
#include "comm/scratch.h"
#include "engine/storage/file_window.h"
#include "engine/storage/host_link.h"
#include "sharding/memory/host_transfers.h"
#include "sharding/memory/reshard.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/memory/wires.h"
#include "sharding/policy/reshard_policy.h"

namespace tessera {
namespace {

// The number of units of `members` that can be under way together: the longest chain of units
// inside one another. "a.b" lies inside "a".
int nesting(const std::vector<PlannedUnit>& units, const std::vector<int>& members) {
  const auto name_of = [&](int unit) -> std::string_view {
    return units[static_cast<std::size_t>(unit)].name;
  };
  std::unordered_set<std::string_view> names;
  for (const int unit : members) names.insert(name_of(unit));
  int deepest = 0;
  for (const int unit : members) {
    int depth = 1;
    const std::string_view name = name_of(unit);
    for (std::size_t i = 0; i < name.size(); ++i)
      if (name[i] == '.' && names.contains(name.substr(0, i))) ++depth;
    deepest = std::max(deepest, depth);
  }
  return deepest;
}

std::size_t gradient_bytes(const UnitLayout& layout, DType dtype) {
  return static_cast<std::size_t>(layout.gradient_elements()) * size_of(dtype);
}

std::size_t local_gradient_bytes(const UnitLayout& layout) {
  return static_cast<std::size_t>(layout.local_gradient_elements()) * size_of(sum_dtype_of(layout));
}

ShardingOptions resolved(ShardingOptions options, DeviceType device) {
  options.offload = options.offload.on(device);
  return options;
}

class Planner {
 public:
  Planner(const std::vector<PlannedUnit>& units, const ShardingOptions& options,
          const PlannedWorld& world, bool no_sync)
      : units_(units),
        options_(resolved(options, world.device.stands_for())),
        world_(world),
        no_sync_(no_sync),
        shards_(shards_of(options, world.size)) {}

  BufferPlan plan(std::size_t ignored_bytes) {
    add(BufferUse::ignored, MemoryKind::parameters, -1, "ignored modules and buffers",
        ignored_bytes);
    for (std::size_t i = 0; i < units_.size(); ++i) add_unit(static_cast<int>(i));
    add_windows();
    add_host_transfers();
    add_pools();
    add_sums();
    add_scratch();
    add_scratch_of_parts();
    return std::move(plan_);
  }

 private:
  [[nodiscard]] int replicas() const { return world_.size / shards_; }

  void add(BufferUse use, MemoryKind kind, int unit, std::string name, std::size_t bytes,
           int count = 1, bool one_copy = false) {
    if (bytes == 0 || count == 0) return;
    plan_.buffers.push_back({use, kind, unit, std::move(name), bytes, count,
                             one_copy && !world_.nccl && world_.size > 1, false, false, 0});
  }
  void add_in(Placement placement, BufferUse use, MemoryKind kind, int unit, std::string name,
              std::size_t bytes) {
    const std::size_t before = plan_.buffers.size();
    add(use, kind, unit, std::move(name), bytes);
    if (plan_.buffers.size() == before) return;
    plan_.buffers.back().in_file = placement == Placement::file;
    plan_.buffers.back().on_host = placement == Placement::host;
  }

  void add_windows() {
    const OffloadOptions& offload = options_.offload;
    if (!offload.uses_files()) return;
    const FileNeeds needs = file_needs(units_);
    const auto window = [&](BufferUse use, MemoryKind kind, const char* name, std::size_t largest,
                            int count) {
      if (largest == 0) return;
      add(use, kind, -1, name, FileWindow::bytes(offload.piece_bytes, largest), count);
    };
    if (offload.parameters == Placement::file) {
      window(BufferUse::master_window, MemoryKind::parameters, "windows on masters",
             needs.largest_master, 2);
    }
    if (offload.gradients == Placement::file) {
      window(BufferUse::gradient_window, MemoryKind::gradients, "window on gradients",
             needs.largest_gradient, 1);
      if (needs.largest_gradient > 0) {
        add(BufferUse::reduced_gradient, MemoryKind::gradients, -1, "gradient on its way to a file",
            AlignedMemory::bytes(needs.largest_gradient));
      }
    }
  }

  // Buffers of copies between a GPU and its host (sharding/memory/host_transfers.h,
  // engine/storage/host_link.h).
  void add_host_transfers() {
    const OffloadOptions& offload = options_.offload;
    if (!offload.uses_host()) return;
    const FileNeeds needs = file_needs(units_);
    if (offload.parameters == Placement::host) {
      add(BufferUse::upload_window, MemoryKind::parameters, -1,
          "masters on their way from the host",
          ParameterUploads::bytes(offload.piece_bytes, needs.largest_master));
    }
    if (offload.gradients == Placement::host) {
      add(BufferUse::reduced_gradient, MemoryKind::gradients, -1,
          "gradients on their way to the host", needs.largest_gradient, GradientDownloads::buffers);
    }
    const Placement updates = offload.optimizer;
    if (offload.parameters != updates) {
      add_in(updates, BufferUse::master_window, MemoryKind::parameters, -1, "window on masters",
             HostLink::window_bytes(offload.piece_bytes, needs.largest_trainable));
    }
    if (offload.gradients != updates) {
      add_in(updates, BufferUse::gradient_window, MemoryKind::gradients, -1, "window on gradients",
             HostLink::window_bytes(offload.piece_bytes, needs.largest_gradient));
    }
  }

  void add_unit(int index) {
    const PlannedUnit& unit = units_[static_cast<std::size_t>(index)];
    const UnitLayout& layout = *unit.layout;
    const bool is_root = index == 0;
    if (layout.slots().empty()) return;
    std::size_t masters = 0;
    for (const auto& segment : layout.segments()) masters += segment.master_bytes();
    add_in(options_.offload.parameters, BufferUse::masters, MemoryKind::parameters, index,
           "master shard of " + unit_title(unit.name), masters);
    if (shares_parameter_pool(layout, options_, unit.name)) {
      add_resharded(index, reshard_of(options_, unit.name, shards_).ranks);
    } else if (!computes_on_master(layout, options_.offload)) {
      add(BufferUse::gathered, MemoryKind::communication, index,
          "parameters of " + unit_title(unit.name), layout.bytes(), 1, true);
    }
    if (layout.gradient_elements() == 0) return;
    add_in(options_.offload.gradients, BufferUse::gradient_shard, MemoryKind::gradients, index,
           "gradient shard of " + unit_title(unit.name), local_gradient_bytes(layout));
    if (has_own_gradient(options_, is_root)) {
      add(BufferUse::gradient, MemoryKind::communication, index,
          "gradient of " + unit_title(unit.name),
          gradient_bytes(layout, gradient_dtype_of(layout, options_)));
    } else {
      reducing_.push_back(index);
    }
    if (no_sync_) {
      add(BufferUse::local_sum, MemoryKind::communication, index,
          "no_sync sums of " + unit_title(unit.name),
          gradient_bytes(layout, local_sum_dtype_of(layout, options_)));
    }
  }

  // Sorts the unit by the ranks that it is gathered from: all that hold one copy, or fewer.
  void add_resharded(int index, int ranks) {
    sharing_.push_back(index);
    if (ranks == 0) {
      freed_whole_ = true;
      return;
    }
    resharding_[ranks].push_back(index);
    const PlannedUnit& unit = units_[static_cast<std::size_t>(index)];
    add(BufferUse::resharded, MemoryKind::communication, index,
        "part kept of " + unit_title(unit.name), resharded_bytes(*unit.layout, ranks));
  }

  // A fixed set of buffers with the size of the largest unit: one for each unit under way, and one
  // for each unit that is gathered ahead.
  void add_pool_of_parameters(const std::vector<int>& units, int ahead, int ranks) {
    std::size_t largest = 0;
    for (const int unit : units) largest = std::max(largest, layout_of(unit).bytes());
    const std::size_t before = plan_.buffers.size();
    add(BufferUse::gathered_pool, MemoryKind::communication, -1,
        ranks == 0 ? "parameters" : "parameters from " + std::to_string(ranks) + " ranks", largest,
        std::min(static_cast<int>(units.size()), nesting(units_, units) + ahead), true);
    if (plan_.buffers.size() > before) plan_.buffers.back().ranks = ranks;
  }

  // The same for gradients, with one more buffer, for the gradient that is reduced meanwhile.
  void add_pools() {
    // Units that keep parts are gathered from all ranks only in forwards.
    const bool ahead = freed_whole_ || options_.forward_prefetch;
    add_pool_of_parameters(sharing_, ahead ? prefetched_units(options_) : 0, 0);
    for (const auto& [ranks, units] : resharding_)
      add_pool_of_parameters(units, prefetched_units(options_), ranks);
    std::size_t largest = 0;
    for (const int unit : reducing_) {
      const UnitLayout& layout = layout_of(unit);
      largest = std::max(largest, gradient_bytes(layout, gradient_dtype_of(layout, options_)));
    }
    add(BufferUse::gradient_pool, MemoryKind::communication, -1, "gradients", largest,
        std::min(static_cast<int>(reducing_.size()), nesting(units_, reducing_) + 1));
  }

  void add_sums() {
    if (shards_ == 1 || replicas() == 1) return;
    std::size_t largest = 0;
    int reduced = 0;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const std::size_t bytes = local_gradient_bytes(*units_[i].layout);
      largest = std::max(largest, bytes);
      reduced += bytes > 0 ? 1 : 0;
      if (!options_.defer_replica_sums) continue;
      add(BufferUse::partial_sums, MemoryKind::communication, static_cast<int>(i),
          "sums of the group of " + unit_title(units_[i].name), bytes);
    }
    if (options_.defer_replica_sums) return;
    // One is summed between replicas while the next is summed within one.
    add(BufferUse::partial_sums, MemoryKind::communication, -1, "partial sums", largest,
        std::min(reduced, 2));
  }

  [[nodiscard]] std::size_t gather_scratch_of(const UnitLayout& layout, int ranks) const {
    return comm::nccl_all_gather_scratch(ranges_to_gather(layout, true, options_), ranks);
  }

  // Scratch of the communicators between ranks that keep parts.
  void add_scratch_of_parts() {
    if (!world_.nccl) return;
    for (const auto& [ranks, units] : resharding_) {
      std::size_t bytes = 0;
      for (const int unit : units)
        bytes = std::max(bytes, gather_scratch_of(layout_of(unit), ranks));
      const std::size_t before = plan_.buffers.size();
      add(BufferUse::gather_scratch, MemoryKind::communication, -1,
          "scratch of gathers from " + std::to_string(ranks) + " ranks", bytes);
      if (plan_.buffers.size() > before) plan_.buffers.back().ranks = ranks;
    }
  }

  void add_scratch() {
    std::size_t gather = 0, reduce = 0, replicas_bytes = 0;
    for (const PlannedUnit& unit : units_) {
      const UnitLayout& layout = *unit.layout;
      if (world_.nccl && shards_ > 1) {
        gather = std::max(gather, gather_scratch_of(layout, shards_));
      }
      if (layout.gradient_elements() == 0) continue;
      add_scratch_of(layout, gradient_dtype_of(layout, options_), reduce, replicas_bytes);
      if (no_sync_) {
        add_scratch_of(layout, local_sum_dtype_of(layout, options_), reduce, replicas_bytes);
      }
    }
    add(BufferUse::gather_scratch, MemoryKind::communication, -1, "scratch of gathers", gather);
    add(BufferUse::reduce_scratch, MemoryKind::communication, -1, "scratch of reductions", reduce);
    add(BufferUse::replicas_scratch, MemoryKind::communication, -1,
        "scratch of reductions across copies", replicas_bytes, 1, true);
  }

  void add_scratch_of(const UnitLayout& layout, DType dtype, std::size_t& reduce,
                      std::size_t& across) const {
    const WireFormat wire = world_.size == 1 ? WireFormat::same : reduce_wire_of(dtype, options_);
    if (shards_ == 1) {
      across = std::max(across, all_reduce_scratch(layout.gradient_elements(), dtype, wire));
      return;
    }
    if (world_.nccl) {
      std::vector<std::int64_t> counts;
      for (const auto& segment : layout.segments()) {
        if (segment.trainable) counts.push_back(segment.share);
      }
      reduce = std::max(reduce, comm::nccl_reduce_scatter_scratch(counts, shards_, dtype,
                                                                  world_.fixed_order, wire));
    }
    if (replicas() == 1) return;
    across = std::max(across, all_reduce_scratch(layout.local_gradient_elements(),
                                                 sum_dtype_of(layout), WireFormat::same));
  }

  [[nodiscard]] std::size_t all_reduce_scratch(std::int64_t count, DType in_dtype,
                                               WireFormat wire) const {
    if (count == 0) return 0;
    if (world_.over_hosts) return comm::nodes_sums_bytes;
    if (world_.nccl) {
      return comm::nccl_all_reduce_scratch(count, replicas(), in_dtype, world_.fixed_order, wire);
    }
    const comm::Reduction reduction{.in_dtype = in_dtype};  // sums are wide
    return comm::shared_all_reduce_scratch(world_.device, replicas(),
                                           static_cast<std::uint64_t>(count) * size_of(in_dtype),
                                           reduction);
  }

  [[nodiscard]] const UnitLayout& layout_of(int unit) const {
    return *units_[static_cast<std::size_t>(unit)].layout;
  }

  const std::vector<PlannedUnit>& units_;
  const ShardingOptions options_;
  const PlannedWorld& world_;
  const bool no_sync_;
  const int shards_;
  std::vector<int> sharing_;                    // units in the pool of parameters
  std::map<int, std::vector<int>> resharding_;  // units of it that keep parts, by ranks
  bool freed_whole_ = false;                    // some units keep no part
  std::vector<int> reducing_;                   // units in the pool of gradients
  BufferPlan plan_;
};

std::size_t sum_of(const std::vector<PlannedBuffer>& buffers, MemoryKind kind, bool in_file,
                   bool on_host) {
  std::size_t sum = 0;
  for (const PlannedBuffer& buffer : buffers) {
    if (buffer.kind == kind && buffer.in_file == in_file && buffer.on_host == on_host)
      sum += buffer.total();
  }
  return sum;
}

}  // namespace

std::size_t BufferPlan::bytes(MemoryKind kind) const {
  return sum_of(buffers, kind, false, false);
}

std::size_t BufferPlan::bytes_in_files(MemoryKind kind) const {
  return sum_of(buffers, kind, true, false);
}

std::size_t BufferPlan::bytes_on_host(MemoryKind kind) const {
  return sum_of(buffers, kind, false, true);
}

BufferPlan buffer_plan(const std::vector<PlannedUnit>& units, const ShardingOptions& options,
                       const PlannedWorld& world, bool no_sync, std::size_t ignored_bytes) {
  return Planner(units, options, world, no_sync).plan(ignored_bytes);
}

FileNeeds file_needs(const std::vector<PlannedUnit>& units) {
  FileNeeds needs;
  for (const PlannedUnit& unit : units) {
    const UnitLayout& layout = *unit.layout;
    if (layout.slots().empty()) continue;
    for (const UnitLayout::Segment& segment : layout.segments()) {
      const std::size_t bytes = StateFile::round_up(segment.master_bytes());
      needs.masters += bytes;
      needs.largest_master = std::max(needs.largest_master, bytes);
      if (segment.trainable) needs.largest_trainable = std::max(needs.largest_trainable, bytes);
    }
    const std::size_t gradient = StateFile::round_up(local_gradient_bytes(layout));
    needs.gradients += gradient;
    needs.largest_gradient = std::max(needs.largest_gradient, gradient);
  }
  return needs;
}

}  // namespace tessera
