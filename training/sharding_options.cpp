// What a recipe's section `sharding` means for a module.
#include "training/sharding_options.h"

#include <vector>

namespace tessera::training {
namespace {

WrapPolicy wrap_policy(const Recipe& recipe, const std::string& layer_class) {
  switch (recipe.sharding.auto_wrap_policy) {
    case AutoWrapPolicy::none:
      return WrapPolicy::none();
    case AutoWrapPolicy::size_based:
      return WrapPolicy::size(recipe.sharding.min_num_params);
    case AutoWrapPolicy::transformer_based:
      break;
  }
  const auto& classes = recipe.sharding.transformer_layer_cls_to_wrap;
  return WrapPolicy::transformer(classes.empty() ? std::vector{layer_class} : classes);
}

}  // namespace

ShardingOptions sharding_options(const Recipe& recipe, const Context& context,
                                 const std::string& layer_class) {
  const ShardingRecipe& chosen = recipe.sharding;
  ShardingOptions options;
  options.strategy = chosen.sharding_strategy;
  options.wrap = wrap_policy(recipe, layer_class);
  set_precision(recipe, options);
  if (chosen.ignored_modules) {
    options.ignored_modules = chosen.ignored_modules->names;
    options.ignored_pattern = chosen.ignored_modules->pattern;
  }
  options.backward_prefetch = chosen.backward_prefetch;
  options.forward_prefetch = chosen.forward_prefetch;
  options.limit_all_gathers = static_cast<int>(chosen.limit_all_gathers);
  options.reshard_after_forward = chosen.reshard_after_forward;
  options.reshard_after_backward = chosen.reshard_after_backward;
  options.group_size = static_cast<int>(chosen.group_size.value_or(context.world().local_size));
  options.defer_replica_sums = chosen.defer_replica_sums;
  options.reduction_group = static_cast<int>(chosen.reduction_group.value_or(0));
  options.activation_checkpointing = chosen.activation_checkpointing;
  options.activation_checkpointing_cls = chosen.activation_checkpointing_cls;
  options.activation_checkpointing_every = static_cast<int>(chosen.activation_checkpointing_every);
  options.activation_offload = chosen.activation_offload;
  options.offload = offload_options(recipe);
  return options;
}

ShardingOptions frozen_sharding_options(const Recipe& recipe, const Context& context,
                                        const std::string& layer_class) {
  Recipe own = recipe;
  own.sharding.transformer_layer_cls_to_wrap.clear();
  own.sharding.ignored_modules.reset();
  own.sharding.keep_fp32.clear();
  own.sharding.reduce_dtype.reset();
  own.sharding.reduce_wire = WireFormat::same;
  own.sharding.defer_replica_sums = false;
  own.sharding.reshard_after_forward = ShardingRecipe{}.reshard_after_forward;
  own.sharding.activation_checkpointing = ActivationCheckpointing::none;
  own.sharding.activation_checkpointing_cls.clear();
  own.sharding.activation_offload = false;
  return sharding_options(own, context, layer_class);
}

}  // namespace tessera::training
