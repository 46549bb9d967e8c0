// What a user chooses when sharding a module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device.h"
#include "kernels/base/dtype.h"
#include "sharding/strategy.h"
#include "sharding/wrap_policy.h"

namespace tessera {

enum class BackwardPrefetch : std::uint8_t {
  none,
  pre,   // the next unit's gather is issued when a unit's backward begins
  post,  // ... when it ends: one buffer less in flight, less overlap
};

// What is kept of a module's forward for its backward.
enum class ActivationCheckpointing : std::uint8_t {
  none,       // all that backward reads
  full,       // the inputs: the rest is computed again
  selective,  // the inputs and what costs most to compute again: ops_worth_keeping
};

// Where a rank's state lies between its uses.
enum class Placement : std::uint8_t {
  device,
  host,  // a GPU's: page-locked memory of its host; for CPU ranks the same as device
  file,  // in a file of OffloadOptions::folder; CPU ranks only
};
std::string_view name_of(Placement placement);

struct OffloadOptions {
  Placement parameters = Placement::device;  // master shards
  Placement gradients = Placement::device;   // reduced gradients
  Placement optimizer = Placement::device;   // moments
  // For `file`: made where it is missing. Files have no names there and go with the process.
  std::string folder = {};
  // Files are read and written in pieces of so many bytes, a multiple of 8192, past the page cache
  // where the file system can. So is a GPU's memory, where only parts of it are copied.
  std::size_t piece_bytes = std::size_t{4} << 20;
  bool direct = true;

  [[nodiscard]] bool uses_files() const {
    return parameters == Placement::file || gradients == Placement::file ||
           optimizer == Placement::file;
  }
  [[nodiscard]] bool uses_host() const {
    return parameters == Placement::host || gradients == Placement::host ||
           optimizer == Placement::host;
  }
  // As ranks of this type of device take them: on the CPU, `host` is `device`.
  [[nodiscard]] OffloadOptions on(DeviceType device) const;
};
// Error(configuration) for what there is not: files without a folder, a GPU's state in files.
void check_offload(const OffloadOptions& options, DeviceType device);

struct ShardingOptions {
  Strategy strategy = Strategy::full_shard;
  WrapPolicy wrap = {};
  // Parameters are cast to this dtype before they are gathered, and computed with in it. Unset:
  // their own.
  std::optional<DType> param_dtype = std::nullopt;
  // The dtype of gradients on the wire. Sums are fp32, but NCCL's own (without
  // comm::ConnectOptions::fixed_order), which are in this dtype. Unset: the parameters' compute
  // dtype. float16 is refused here and above: it needs a loss scaler.
  std::optional<DType> reduce_dtype = std::nullopt;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = true;
  // Ranks that hold one copy between them, for the HYBRID strategies: consecutive ranks. Divides
  // the world.
  int group_size = 0;
  // Ranks whose gradients are summed first, then the sums: 0 is a plain binary tree. The same
  // number gives the same bits under every strategy. HYBRID with a group that is no power of two
  // needs its group size here, and takes it by itself.
  int reduction_group = 0;
  // Keeps the memory that an unsharded() scope makes for the next one, instead of giving it back.
  bool keep_unsharded_memory = false;
  // Recomputation in backward, of each unit but the root, or of each module of these classes; of
  // every n-th of them. Same bits.
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::none;
  std::vector<std::string> activation_checkpointing_cls = {};
  int activation_checkpointing_every = 1;
  // On a GPU: the inputs that are kept lie on its host until backward comes near.
  bool activation_offload = false;
  OffloadOptions offload = {};
};

// Ranks that hold one copy between them. Error(configuration) when the group does not divide the
// world.
int shards_of(const ShardingOptions& options, int world_size);
// The first level of the summation tree; refuses a group whose sum would not be a subtree.
int reduction_group_of(const ShardingOptions& options, int world_size);

}  // namespace tessera
