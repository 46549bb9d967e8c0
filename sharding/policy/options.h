// What a user chooses when sharding a module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/block_float.h"
#include "base/dtype.h"
#include "engine/device/device.h"
#include "sharding/policy/strategy.h"
#include "sharding/policy/wrap_policy.h"

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

// What becomes of a unit's gathered parameters after its forward, as in FSDP2. true: they are
// freed, and gathered again for the backward. false: they stay until the backward is done. N: they
// are freed, but N consecutive ranks keep one copy between them, from which they are gathered until
// they change (ZeRO++'s hpZ); N divides the ranks that hold one copy; 1 is false, all of them are
// true.
using ReshardAfterForward = std::variant<bool, int>;

struct ShardingOptions {
  Strategy strategy = Strategy::full_shard;
  WrapPolicy wrap = {};
  // Parameters are cast to this dtype before they are gathered, and computed with in it. Unset:
  // their own. float16 wants a LossScaler (sharding/context/loss_scaler.h).
  std::optional<DType> param_dtype = std::nullopt;
  // The dtype in which backward writes a unit's gradients, and in which they travel. Sums are fp32.
  // Unset: the parameters' compute dtype.
  std::optional<DType> reduce_dtype = std::nullopt;
  // What a call of the model, net(x), casts its result to: a tensor, or a pair of them. Floating
  // arguments are cast to param_dtype. For a model that is given to fully_shard as a handle. Unset:
  // results are as they are computed.
  std::optional<DType> output_dtype = std::nullopt;
  // Classes of modules that compute in fp32 beside a 16-bit param_dtype, with what lies below them:
  // what goes into them is cast, and what comes out of them cast back. Their parameters are
  // gathered in fp32; their gradients travel as the others.
  std::vector<std::string> keep_fp32 = {};
  // true: every rank takes rank 0's values, whatever its own module has, or lacks (`meta`). false:
  // ranks whose values differ are an Error(configuration) that names the first parameter.
  bool sync_module_states = false;
  // Modules by their full names, and by a regular expression (NamePattern's) that matches full
  // names, left as they are with what lies below them: their parameters are in no unit, every rank
  // has them whole and in their own dtype. Beside a param_dtype, what goes into them is cast to
  // theirs, and what comes out of them back. Nobody sums, clips or unscales their gradients:
  // ShardedModel::ignored_parameters. Checkpoints have them like all others.
  std::vector<std::string> ignored_modules = {};
  std::string ignored_pattern = {};
  // What gathered parameters and gradients travel as, where that is narrower than what they are
  // computed with: what travels is rounded to it under every strategy, and sums are fp32. Between
  // ranks that see one memory nothing travels, and the bits are the same.
  WireFormat gather_wire = WireFormat::same;
  WireFormat reduce_wire = WireFormat::same;  // same, bf16 or int8
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = true;
  // Unset: as the strategy says. The root stays until the backward is done.
  std::optional<ReshardAfterForward> reshard_after_forward = std::nullopt;
  // The same of single units, by name.
  std::map<std::string, ReshardAfterForward> reshard_after_forward_of = {};
  // false: what stays after a forward stays after the backward as well, until the optimizer changes
  // it: nothing is gathered anew within an accumulation. ShardedModel::set_reshard_after_backward.
  bool reshard_after_backward = true;
  // Of units that take turns in memory, how many are whole at a time, the one at work included: as
  // many as that less one are gathered ahead. 1: none is. Of units that lie inside one another each
  // counts as one with those around it.
  int limit_all_gathers = 2;
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
