// How the memory of a unit depends on its layout and on the options. The plan of buffers and the
// runtime share these functions.
#pragma once

#include <string_view>

#include "sharding/memory/layout.h"
#include "sharding/policy/options.h"

namespace tessera {

// The dtype in which backward writes the gradient of a unit, and in which the ranks reduce it.
DType gradient_dtype_of(const UnitLayout& layout, const ShardingOptions& options);
// The dtype of reduced gradients: fp32, or fp64 where a trainable master is.
DType sum_dtype_of(const UnitLayout& layout);
// The dtype of the sums of no_sync() passes.
DType local_sum_dtype_of(const UnitLayout& layout, const ShardingOptions& options);
// True when the master shard itself serves as the gathered parameters (one shard, no cast needed).
// `offload` is OffloadOptions::on() the device, here and below.
bool computes_on_master(const UnitLayout& layout, const OffloadOptions& offload);
// True when the gathered parameters of the unit lie in a buffer that units share in turns.
bool shares_parameter_pool(const UnitLayout& layout, const ShardingOptions& options,
                           std::string_view unit);
// True when the gradient of the unit has its own buffer.
bool has_own_gradient(const ShardingOptions& options, bool is_root);

}  // namespace tessera
