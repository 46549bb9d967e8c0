// Reads the segments of the layout and the row of the strategy.
#include "sharding/memory/unit_memory.h"

#include <algorithm>

#include "sharding/policy/reshard_policy.h"

namespace tessera {

DType gradient_dtype_of(const UnitLayout& layout, const ShardingOptions& options) {
  if (options.reduce_dtype) return *options.reduce_dtype;
  const DType widest = layout.gradient_dtype();
  // Modules kept in fp32 do not widen the reduction's format; fp64, which is never cast, is summed
  // in fp64.
  return options.keep_fp32.empty() || widest == float64 ? widest : *options.param_dtype;
}

DType sum_dtype_of(const UnitLayout& layout) {
  const auto& segments = layout.segments();
  const bool fp64 =
      std::any_of(segments.begin(), segments.end(), [](const UnitLayout::Segment& segment) {
        return segment.trainable && segment.master_dtype == float64;
      });
  return fp64 ? float64 : float32;
}

DType local_sum_dtype_of(const UnitLayout& layout, const ShardingOptions& options) {
  return gradient_dtype_of(layout, options) == float64 ? float64 : sum_dtype_of(layout);
}

bool computes_on_master(const UnitLayout& layout, const OffloadOptions& offload) {
  const auto& segments = layout.segments();
  return layout.shards() == 1 && offload.parameters == Placement::device && !segments.empty() &&
         std::all_of(segments.begin(), segments.end(), [](const UnitLayout::Segment& segment) {
           return segment.compute_dtype == segment.master_dtype;
         });
}

bool shares_parameter_pool(const UnitLayout& layout, const ShardingOptions& options,
                           std::string_view unit) {
  return reshard_of(options, unit, layout.shards()).gathered == Gathered::per_pass &&
         !computes_on_master(layout, options.offload) && !layout.slots().empty();
}

bool has_own_gradient(const ShardingOptions& options, bool is_root) {
  return is_root || row_of(options.strategy).reduce == ReduceAt::end_of_backward;
}

}  // namespace tessera
