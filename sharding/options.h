// What a user chooses when sharding a module.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/dtype.h"
#include "sharding/strategy.h"
#include "sharding/wrap_policy.h"

namespace tessera {

enum class BackwardPrefetch : std::uint8_t {
  none,
  pre,   // the next unit's gather is issued when a unit's backward begins
  post,  // ... when it ends: one buffer less in flight, less overlap
};

struct ShardingOptions {
  Strategy strategy = Strategy::full_shard;
  WrapPolicy wrap = {};
  // Parameters are cast to this dtype before they are gathered, and computed with in it. Unset:
  // their own.
  std::optional<DType> param_dtype = std::nullopt;
  // The dtype of gradients on the wire; sums are fp32 in any case. Unset: the parameters' compute
  // dtype.
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
};

}  // namespace tessera
