// The user's choices for sharding a module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/block_float.h"
#include "base/dtype.h"
#include "engine/device/device.h"
#include "engine/nn/module.h"
#include "sharding/policy/strategy.h"
#include "sharding/policy/wrap_policy.h"

namespace tessera {

enum class BackwardPrefetch : std::uint8_t {
  none,
  pre,   // the next unit's gather is issued when a unit's backward begins
  post,  // ... when it ends: one buffer less in flight, less overlap
};

// The results of its forward that a module keeps for its backward.
enum class ActivationCheckpointing : std::uint8_t {
  none,       // everything that backward reads
  full,       // the inputs: the rest is computed again
  selective,  // the inputs and the results that cost most to compute again: ops_worth_keeping
};

// The place of a rank's state between its uses.
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
  // For `file`: created if it is missing. The files have no names in it and end with the process.
  std::string folder = {};
  // Files are read and written in pieces of this many bytes, a multiple of 8192, past the page
  // cache if the file system supports it. Partial copies of a GPU's memory use the same pieces.
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
  // The options for ranks on this type of device: on the CPU, `host` becomes `device`.
  [[nodiscard]] OffloadOptions on(DeviceType device) const;
};
// Error(configuration) for impossible options: files without a folder, a GPU's state in files.
void check_offload(const OffloadOptions& options, DeviceType device);

// How long a unit's gathered parameters stay after its forward, as in FSDP2. true: they are freed,
// and gathered again for the backward. false: they stay until the backward is done. N: they are
// freed, but N consecutive ranks keep one copy together, from which they are gathered until they
// change (ZeRO++'s hpZ); N divides the ranks that hold one copy; 1 means false, all of them
// means true.
using ReshardAfterForward = std::variant<bool, int>;

struct ShardingOptions {
  Strategy strategy = Strategy::full_shard;
  WrapPolicy wrap = {};
  // Parameters are cast to this dtype before a gather, and modules compute in it. Unset: the
  // parameters' own dtype. float16 requires a LossScaler (sharding/context/loss_scaler.h).
  std::optional<DType> param_dtype = std::nullopt;
  // The dtype in which backward writes a unit's gradients, and in which they travel. Sums are fp32.
  // Unset: the parameters' compute dtype.
  std::optional<DType> reduce_dtype = std::nullopt;
  // A call of the model, net(x), casts its result to this dtype: a tensor, or a pair of them.
  // Floating arguments are cast to param_dtype. For a model that is given to fully_shard as a
  // handle. Unset: results keep their dtype.
  std::optional<DType> output_dtype = std::nullopt;
  // Classes of modules that compute in fp32 despite a 16-bit param_dtype, with all modules below
  // them: their inputs are cast to fp32, their outputs are cast back. Their parameters are gathered
  // in fp32; their gradients travel like the others.
  std::vector<std::string> keep_fp32 = {};
  // true: every rank takes rank 0's values, whatever its own module has, or lacks (`meta`). false:
  // ranks whose values differ are an Error(configuration) that names the first such parameter.
  bool sync_module_states = false;
  // Modules that sharding leaves as they are, with all modules below them, by their full names and
  // by a regular expression (NamePattern's) that matches full names. Their parameters are in no
  // unit; every rank has them whole and in their own dtype. With a param_dtype, their inputs are
  // cast to their dtype and their outputs are cast back. Their gradients are not summed over ranks,
  // clipped or unscaled: ShardedModel::ignored_parameters. Checkpoints contain them like all
  // others.
  std::vector<std::string> ignored_modules = {};
  std::string ignored_pattern = {};
  // The formats in which gathered parameters and gradients travel, if narrower than the compute
  // type: under every strategy the data is rounded to the format first, and sums are fp32. Between
  // ranks that see one memory nothing travels, but the bits are the same.
  WireFormat gather_wire = WireFormat::same;
  WireFormat reduce_wire = WireFormat::same;  // same, bf16 or int8
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = true;
  // Unset: the strategy's rule. The root stays until the backward is done.
  std::optional<ReshardAfterForward> reshard_after_forward = std::nullopt;
  // The same for single units, by name.
  std::map<std::string, ReshardAfterForward> reshard_after_forward_of = {};
  // false: parameters that stay after a forward also stay after the backward, until the optimizer
  // changes them, so gradient accumulation gathers nothing again.
  // ShardedModel::set_reshard_after_backward.
  bool reshard_after_backward = true;
  // The number of pooled units that are whole at a time, including the present one; the others are
  // gathered ahead. 1: none. Units inside one another each count as one with those around them.
  int limit_all_gathers = 2;
  // For the HYBRID strategies: the number of consecutive ranks that hold one copy together. Divides
  // the world.
  int group_size = 0;
  // The number of ranks whose gradients are summed first, before their sums are: 0 is a plain
  // binary tree. The same number gives the same bits under every strategy. HYBRID with a group that
  // is not a power of two needs its group size here, and sets it by itself.
  int reduction_group = 0;
  // For the HYBRID strategies with gradient accumulation: ShardedModel::set_requires_all_reduce()
  // can leave the sums of a group's gradients in the group, in fp32 memory as large as the rank's
  // gradient shards. Sums of micro-batches are then added before those of groups.
  bool defer_replica_sums = false;
  // Parameters that lie in segments of their own: each rank has an equal part of them. For an
  // optimizer that keeps more or less state for them than for others, so that it takes the same
  // memory on every rank (optim::matrices_of). Changes no bit. Empty: none.
  std::function<bool(const nn::NamedParameter& parameter)> apart = {};
  // A parameter's elements are cut into shards at multiples of this many only: a multiple of 32, or
  // 1, which is the same as 32. For an optimizer that has a state for each block of elements
  // (optim::needs_of). Changes no bit.
  std::int64_t block = 32;
  // Keeps the memory of an unsharded() scope for the next one, instead of freeing it.
  bool keep_unsharded_memory = false;
  // Recomputation in backward, of each unit except the root, or of each module of these classes; of
  // every n-th of them. Same bits.
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::none;
  std::vector<std::string> activation_checkpointing_cls = {};
  int activation_checkpointing_every = 1;
  // On a GPU: the kept inputs lie on its host until shortly before their backward.
  bool activation_offload = false;
  OffloadOptions offload = {};
};

// The number of ranks that hold one copy together. Error(configuration) when the group does not
// divide the world.
int shards_of(const ShardingOptions& options, int world_size);
// Error(configuration) for defer_replica_sums where no group sums gradients before others do.
void check_defer_replica_sums(const ShardingOptions& options, int shards);
// The first level of the summation tree. Refuses a group whose sum would not be a subtree.
int reduction_group_of(const ShardingOptions& options, int world_size);

}  // namespace tessera
