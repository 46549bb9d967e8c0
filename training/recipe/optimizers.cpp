// From the keys of `train` to the options of an optimizer.
#include "training/recipe/optimizers.h"

#include <algorithm>
#include <array>
#include <vector>

#include "training/recipe/fine_tuning.h"
#include "training/recipe/schema_rows.h"

namespace tessera::training {
namespace {

std::vector<optim::ParameterGroup> parameter_groups(const TrainRecipe& train) {
  std::vector<optim::ParameterGroup> groups;
  for (const ParameterGroupRecipe& group : train.parameter_groups) {
    const double scale = group.lr ? *group.lr / train.lr : 1.0;
    groups.push_back(
        {.pattern = group.pattern, .lr_scale = scale, .weight_decay = group.weight_decay});
  }
  return groups;
}

// The options that every optimizer has.
template <class Options>
Options common(const TrainRecipe& train) {
  Options options;
  options.lr = train.lr;
  options.weight_decay = train.weight_decay;
  options.groups = parameter_groups(train);
  if constexpr (requires { options.beta1; }) {
    if (train.betas) {
      options.beta1 = (*train.betas)[0];
      options.beta2 = (*train.betas)[1];
    }
  }
  return options;
}

optim::OptimizerChoice adamw(const TrainRecipe& train) {
  auto options = common<optim::AdamWOptions>(train);
  options.eps = train.eps;
  options.state_dtype = train.adamw.state_dtype.value_or(options.state_dtype);
  options.seed = static_cast<std::uint64_t>(train.seed);
  return options;
}

optim::OptimizerChoice adamw8bit(const TrainRecipe& train) {
  auto options = common<optim::AdamW8BitOptions>(train);
  options.eps = train.eps;
  options.min_8bit_size = train.adamw8bit.min_size.value_or(options.min_8bit_size);
  return options;
}

optim::OptimizerChoice lion(const TrainRecipe& train) {
  return common<optim::LionOptions>(train);
}

optim::OptimizerChoice sgd(const TrainRecipe& train) {
  auto options = common<optim::SgdOptions>(train);
  options.momentum = train.momentum;
  return options;
}

optim::OptimizerChoice muon(const TrainRecipe& train) {
  optim::MuonOptions options = muon_options(train);
  options.groups = parameter_groups(train);
  return options;
}

optim::OptimizerChoice schedule_free_adamw(const TrainRecipe& train) {
  auto options = common<optim::ScheduleFreeAdamWOptions>(train);
  options.eps = train.eps;
  return options;
}

optim::OptimizerChoice adafactor(const TrainRecipe& train) {
  auto options = common<optim::AdafactorOptions>(train);
  const AdafactorRecipe& own = train.adafactor;
  options.beta2_decay = own.beta2_decay.value_or(options.beta2_decay);
  options.eps1 = own.eps1;
  options.eps2 = own.eps2.value_or(options.eps2);
  options.clip_threshold = own.clip_threshold.value_or(options.clip_threshold);
  return options;
}

constexpr std::array rows = {
    OptimizerRow{OptimizerKind::adamw, "adamw", adamw},
    OptimizerRow{OptimizerKind::adamw8bit, "adamw8bit", adamw8bit, false},
    OptimizerRow{OptimizerKind::lion, "lion", lion, true, true, false},
    OptimizerRow{OptimizerKind::sgd, "sgd", sgd, true, false, false},
    OptimizerRow{OptimizerKind::muon, "muon", muon, false},
    OptimizerRow{OptimizerKind::schedule_free_adamw, "schedule_free_adamw", schedule_free_adamw,
                 false},
    OptimizerRow{OptimizerKind::adafactor, "adafactor", adafactor, false, false, false},
};

}  // namespace

std::span<const OptimizerRow> optimizer_rows() {
  return rows;
}

const OptimizerRow& row_of(OptimizerKind kind) {
  return *std::find_if(rows.begin(), rows.end(),
                       [&](const OptimizerRow& row) { return row.kind == kind; });
}

namespace {

void validate_adafactor(const Recipe& recipe) {
  const AdafactorRecipe& own = recipe.train.adafactor;
  const bool chosen = recipe.train.optimizer == OptimizerKind::adafactor;
  const auto of_adafactor = [&](const std::optional<double>& value, const std::string& key) {
    check_key(chosen || !value, recipe, "train.adafactor." + key,
              "is for train.optimizer: adafactor");
  };
  of_adafactor(own.beta2_decay, "beta2_decay");
  of_adafactor(own.eps1, "eps1");
  of_adafactor(own.eps2, "eps2");
  of_adafactor(own.clip_threshold, "clip_threshold");
}

// The names of the optimizers for which `has` is true.
std::string names_of_rows(bool OptimizerRow::*has) {
  std::string names;
  for (const OptimizerRow& row : rows) {
    if (!(row.*has)) continue;
    names += names.empty() ? "" : ", ";
    names += row.name;
  }
  return names;
}

}  // namespace

void check_offloads(const Recipe& recipe, bool offloads, std::string_view place) {
  const OptimizerRow& row = row_of(recipe.train.optimizer);
  check_key(row.offloads || !offloads, recipe, "train.optimizer",
            "{} keeps parameters, gradients and moments {}; leave sharding.offload out, or take "
            "adamw",
            row.name, place);
  check_key(recipe.train.adamw.state_dtype.value_or(float32) == float32 || !offloads, recipe,
            "train.adamw.state_dtype",
            "bf16 keeps parameters, gradients and moments {}; leave sharding.offload out, or take "
            "fp32",
            place);
}

void validate_optimizer(const Recipe& recipe) {
  const OptimizerRow& row = row_of(recipe.train.optimizer);
  check_offloads(recipe, offload_options(recipe).uses_files(), "in memory");
  validate_muon(recipe);
  const TrainRecipe& train = recipe.train;
  check_key(row.has_betas || !train.betas, recipe, "train.betas", "is for train.optimizer: {}",
            names_of_rows(&OptimizerRow::has_betas));
  check_key(row.has_eps || train.eps == TrainRecipe().eps, recipe, "train.eps",
            "is for train.optimizer: {}{}", names_of_rows(&OptimizerRow::has_eps),
            row.kind == OptimizerKind::adafactor ? "; Adafactor's are train.adafactor.eps1 and eps2"
                                                 : "");
  check_key(!train.adamw.state_dtype || train.optimizer == OptimizerKind::adamw, recipe,
            "train.adamw.state_dtype", "is for train.optimizer: adamw");
  check_key(!train.adamw8bit.min_size || train.optimizer == OptimizerKind::adamw8bit, recipe,
            "train.adamw8bit.min_size", "is for train.optimizer: adamw8bit");
  validate_adafactor(recipe);
}

std::vector<RecipeKey> optimizer_keys() {
  return {
      default_is(
          "fp32",
          choice(TESSERA_KEY(train, adamw.state_dtype),
                 std::vector<Choice<DType>>{{"fp32", DType::float32}, {"bf16", DType::bfloat16}},
                 "`adamw`: the dtype of the two moments. bf16 is half of their memory; they "
                 "are rounded at random, by `seed`, step, parameter and element.")),
      default_is("4096", key(TESSERA_KEY(train, adamw8bit.min_size),
                             "`adamw8bit`: parameters with fewer elements keep fp32 moments.",
                             at_least(0))),
      default_is("-0.8", key(TESSERA_KEY(train, adafactor.beta2_decay),
                             "`adafactor`: step t has the weight t^beta2_decay in the second "
                             "moments.",
                             models::Range{{}, 0, false, false})),
      default_is("1.1920929e-07",
                 key(TESSERA_KEY(train, adafactor.eps1),
                     "`adafactor`: the least root of a second moment.", at_least(1.1e-19))),
      default_is("0.001", key(TESSERA_KEY(train, adafactor.eps2),
                              "`adafactor`: the least size of a parameter, of which its step is "
                              "`lr` times.",
                              at_least(0))),
      default_is("1.0", key(TESSERA_KEY(train, adafactor.clip_threshold),
                            "`adafactor`: the largest root mean square of a parameter's "
                            "direction.",
                            at_least(1))),
  };
}

}  // namespace tessera::training
