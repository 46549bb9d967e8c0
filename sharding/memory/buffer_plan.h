// Every buffer that sharding keeps on a rank, known before one is allocated: a pure function of
// layouts, options and world. The runtime allocates exactly this table, so a memory plan that adds
// it up is right to the byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/memory_kind.h"
#include "sharding/memory/layout.h"
#include "sharding/policy/options.h"

namespace tessera {

enum class BufferUse : std::uint8_t {
  masters,           // tensors of the rank's pool
  ignored,           // the same: parameters of ignored modules, and buffers
  gradient_shard,    // the same
  gathered,          // a unit's whole parameters
  gathered_pool,     // the same, for units that take turns
  resharded,         // a rank's part of a unit that is resharded to fewer ranks
  gradient,          // a unit's whole gradient, while backward writes it
  gradient_pool,     // the same, for units that take turns
  partial_sums,      // between the two reductions of HYBRID; of a unit with defer_replica_sums
  local_sum,         // a unit's whole gradient over the passes inside no_sync()
  reduce_scratch,    // scratch of the communicator that reduces in the shard group
  replicas_scratch,  // scratch of the communicator between replicas
  master_window,     // of masters in a file, for steps and for gathers
  gradient_window,   // of gradients in a file, for steps and the norm
  reduced_gradient,  // a unit's gradient is reduced here on its way to a file or the host
  upload_window,     // of masters on the host, on their way to a GPU
  gather_scratch,    // scratch of a communicator that gathers
};

struct PlannedBuffer {
  BufferUse use;
  MemoryKind kind;
  int unit = -1;  // index; -1: of all
  std::string name;
  std::size_t bytes = 0;  // of each; a rank's own region, or the one copy that ranks share
  int count = 1;
  bool one_copy = false;  // ranks that see one memory hold one copy together
  bool in_file = false;   // no memory
  bool on_host = false;   // in page-locked memory of a GPU's host, not on the GPU
  int ranks = 0;          // that gather in a gathered_pool, or with a gather_scratch; 0: all that
                          // hold one copy
  [[nodiscard]] std::size_t total() const { return bytes * static_cast<std::size_t>(count); }
};

struct BufferPlan {
  std::vector<PlannedBuffer> buffers;
  [[nodiscard]] std::size_t bytes(MemoryKind kind) const;  // of the device's memory
  [[nodiscard]] std::size_t bytes_in_files(MemoryKind kind) const;
  [[nodiscard]] std::size_t bytes_on_host(MemoryKind kind) const;
};

// The properties of a unit that its memory depends on. The first unit is the root, whose name is
// empty; a unit inside another has a longer name with the same beginning ("encoder",
// "encoder.layers").
struct PlannedUnit {
  std::string name;
  const UnitLayout* layout = nullptr;
};

// The world that runs the collectives.
struct PlannedWorld {
  int size = 1;
  Device device = Device::cpu();
  bool nccl = false;         // ranks with a GPU each; else ranks see one memory
  bool over_hosts = false;   // or: the sums between replicas span nodes, each with one memory
  bool fixed_order = false;  // ConnectOptions::fixed_order
};

// `no_sync`: include the sums of passes inside no_sync(), which a run allocates when the first such
// scope opens. `ignored_bytes`: parameters that are in no unit, and buffers.
BufferPlan buffer_plan(const std::vector<PlannedUnit>& units, const ShardingOptions& options,
                       const PlannedWorld& world, bool no_sync = false,
                       std::size_t ignored_bytes = 0);

// The sizes of a shard's masters and reduced gradients as ranges of a file, each rounded up as
// files require.
struct FileNeeds {
  std::size_t masters = 0, largest_master = 0;      // of all, and of one segment
  std::size_t largest_trainable = 0;                // the same of one that is trained
  std::size_t gradients = 0, largest_gradient = 0;  // of all, and of one unit
};
FileNeeds file_needs(const std::vector<PlannedUnit>& units);

}  // namespace tessera
