// The groups into which the options divide a world.
#include "sharding/policy/options.h"

#include <bit>

#include "base/error.h"

namespace tessera {

int shards_of(const ShardingOptions& options, int world_size) {
  const StrategyRow& row = row_of(options.strategy);
  switch (row.shards) {
    case ShardGroup::self:
      return 1;
    case ShardGroup::world:
      return world_size;
    case ShardGroup::group:
      break;
  }
  TESSERA_CHECK(options.group_size > 0 && world_size % options.group_size == 0,
                ErrorCode::configuration,
                "{} needs a group_size that divides the world of {} ranks, got {}", row.name,
                world_size, options.group_size);
  return options.group_size;
}

int reduction_group_of(const ShardingOptions& options, int world_size) {
  const int requested = options.reduction_group;
  TESSERA_CHECK(requested >= 0 && (requested == 0 || world_size % requested == 0),
                ErrorCode::configuration,
                "reduction_group {} does not divide the world of {} ranks", requested, world_size);
  const int shards = shards_of(options, world_size);
  const bool grouped = row_of(options.strategy).shards == ShardGroup::group;
  if (!grouped || shards == world_size || shards == 1) return requested;
  const bool power = std::has_single_bit(static_cast<unsigned>(shards));
  if (requested == 0) return power ? 0 : shards;
  const bool above = power && requested % shards == 0;
  const bool below =
      shards % requested == 0 && std::has_single_bit(static_cast<unsigned>(shards / requested));
  TESSERA_CHECK(above || below, ErrorCode::configuration,
                "reduction_group {} and group_size {} sum gradients in different orders; use "
                "reduction_group {}",
                requested, shards, shards);
  return requested;
}

void check_defer_replica_sums(const ShardingOptions& options, int shards) {
  if (!options.defer_replica_sums) return;
  const StrategyRow& row = row_of(options.strategy);
  TESSERA_CHECK(row.shards == ShardGroup::group, ErrorCode::configuration,
                "defer_replica_sums is for HYBRID_SHARD and HYBRID_SHARD_ZERO2: {} has no groups "
                "that sum their gradients before they are summed between groups",
                row.name);
  TESSERA_CHECK(shards > 1, ErrorCode::configuration,
                "defer_replica_sums needs a group_size above 1: in a group of one rank there is "
                "nothing to sum first; no_sync() (train.sync_each_batch: false) defers all sums");
}

std::string_view name_of(Placement placement) {
  switch (placement) {
    case Placement::device:
      return "device";
    case Placement::host:
      return "host";
    case Placement::file:
      return "file";
  }
  return "unknown";
}

OffloadOptions OffloadOptions::on(DeviceType device) const {
  OffloadOptions resolved = *this;
  if (device == DeviceType::cuda) return resolved;
  for (Placement* const place : {&resolved.parameters, &resolved.gradients, &resolved.optimizer}) {
    if (*place == Placement::host) *place = Placement::device;
  }
  return resolved;
}

void check_offload(const OffloadOptions& options, DeviceType device) {
  TESSERA_CHECK(!options.uses_files() || !options.folder.empty(), ErrorCode::configuration,
                "offload to files needs a folder for them: sharding.offload.folder");
  if (device != DeviceType::cuda) return;
  const auto check = [](std::string_view what, Placement placement) {
    TESSERA_CHECK(placement != Placement::file, ErrorCode::configuration,
                  "sharding.offload.{}: file is for CPU ranks in this version; on a GPU `host` "
                  "works, which keeps it in the host's memory",
                  what);
  };
  check("parameters", options.parameters);
  check("gradients", options.gradients);
  check("optimizer", options.optimizer);
}

}  // namespace tessera
