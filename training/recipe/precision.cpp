// The keys about precision, taken together, and the format of frozen weights.
#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "checkpoint/load/peft.h"
#include "training/recipe/fine_tuning.h"
#include "training/recipe/recipe.h"

namespace tessera::training {
namespace {

// A key of the loss scale, and how its value is copied from one recipe into another.
struct LossScaleKey {
  const char* name;
  bool (*is_changed)(const ShardingRecipe&);
  void (*copy)(const ShardingRecipe&, ShardingRecipe&);
};

#define TESSERA_LOSS_SCALE_KEY(member)                                                       \
  LossScaleKey {                                                                             \
    "sharding." #member,                                                                     \
        [](const ShardingRecipe& given) { return given.member != ShardingRecipe{}.member; }, \
        [](const ShardingRecipe& from, ShardingRecipe& to) { to.member = from.member; }      \
  }

constexpr std::array keys_of_loss_scale = {
    TESSERA_LOSS_SCALE_KEY(loss_scale),
    TESSERA_LOSS_SCALE_KEY(loss_scale_init),
    TESSERA_LOSS_SCALE_KEY(loss_scale_growth_factor),
    TESSERA_LOSS_SCALE_KEY(loss_scale_backoff_factor),
    TESSERA_LOSS_SCALE_KEY(loss_scale_growth_interval),
    TESSERA_LOSS_SCALE_KEY(loss_scale_min),
};
#undef TESSERA_LOSS_SCALE_KEY

// Key after key, so that a message names the place of the key that is wrong.
void validate_loss_scale(const Recipe& recipe) {
  const bool gives_smallest = keys_of_loss_scale.back().is_changed(recipe.sharding);
  Recipe so_far;
  for (const LossScaleKey& key : keys_of_loss_scale) {
    if (!key.is_changed(recipe.sharding)) continue;
    TESSERA_CHECK(recipe.sharding.mixed_precision == MixedPrecision::fp16, ErrorCode::configuration,
                  "{}: {} is for sharding.mixed_precision: fp16", where(recipe, key.name),
                  key.name);
    TESSERA_CHECK(&key == &keys_of_loss_scale.front() || !recipe.sharding.loss_scale,
                  ErrorCode::configuration,
                  "{}: {} is for the dynamic loss scale, and sharding.loss_scale is {}; leave one "
                  "of them out",
                  where(recipe, key.name), key.name, recipe.sharding.loss_scale.value_or(0));
    // A given smallest scale is checked at its own key, the last one: the first key may need it.
    if (gives_smallest) so_far.sharding.loss_scale_min = recipe.sharding.loss_scale_init;
    key.copy(recipe.sharding, so_far.sharding);
    try {
      const LossScaler scaler(loss_scale_options(so_far));
    } catch (const Error& error) {
      fail(error.code(), "{}: {}: {}", where(recipe, key.name), key.name, error.what());
    }
  }
}

}  // namespace

LossScaleOptions loss_scale_options(const Recipe& recipe) {
  const ShardingRecipe& sharding = recipe.sharding;
  return {.fixed = sharding.loss_scale,
          .initial = sharding.loss_scale_init,
          .growth_factor = sharding.loss_scale_growth_factor,
          .backoff_factor = sharding.loss_scale_backoff_factor,
          .growth_interval = sharding.loss_scale_growth_interval,
          .minimum = sharding.loss_scale_min};
}

void set_precision(const Recipe& recipe, ShardingOptions& options) {
  const ShardingRecipe& sharding = recipe.sharding;
  if (sharding.mixed_precision == MixedPrecision::bf16) options.param_dtype = bfloat16;
  if (sharding.mixed_precision == MixedPrecision::fp16) options.param_dtype = float16;
  options.reduce_dtype = sharding.reduce_dtype;
  options.keep_fp32 = sharding.keep_fp32;
  options.gather_wire = sharding.gather_wire;
  options.reduce_wire = sharding.reduce_wire;
}

void validate_precision(const Recipe& recipe) {
  validate_loss_scale(recipe);
  TESSERA_CHECK(
      recipe.sharding.keep_fp32.empty() || recipe.sharding.mixed_precision != MixedPrecision::no,
      ErrorCode::configuration,
      "{}: sharding.keep_fp32 needs sharding.mixed_precision: bf16 or fp16",
      where(recipe, "sharding.keep_fp32"));
  TESSERA_CHECK(recipe.sharding.reduce_dtype != float16 ||
                    recipe.sharding.mixed_precision == MixedPrecision::fp16,
                ErrorCode::configuration,
                "{}: sharding.reduce_dtype: fp16 needs sharding.mixed_precision: fp16, whose loss "
                "scale keeps gradients in its range",
                where(recipe, "sharding.reduce_dtype"));
}

std::optional<QuantizedFormat> quantized_base(const Recipe& recipe) {
  const auto& chosen = recipe.model.quantize_base;
  if (!chosen) {
    return recipe.model.adapter ? checkpoint::quantized_base_of(*recipe.model.adapter)
                                : std::nullopt;
  }
  switch (*chosen) {
    case BaseWeights::nf4:
      return QuantizedFormat::nf4;
    case BaseWeights::int8:
      return QuantizedFormat::int8;
    case BaseWeights::none:
      break;
  }
  return std::nullopt;
}

void validate_quantized_base(const Recipe& recipe) {
  const std::string key = "model.quantize_base";
  if (recipe.model.quantize_base.value_or(BaseWeights::none) == BaseWeights::none) return;
  check_key(trains_adapters(recipe), recipe, key,
            "is for frozen weights under adapters; choose their layers in "
            "model.lora.target_modules, or name a folder in model.adapter");
  check_key(recipe.model.pretrained.has_value(), recipe, key,
            "needs model.pretrained, the folder of the model that is quantised");
  check_key(predicts_tokens(recipe), recipe, key, "is for language models");
}

}  // namespace tessera::training
