// The keys of runs that make a model smaller: a teacher, and pruning.
#include <fmt/format.h>

#include "base/error.h"
#include "engine/nn/name_pattern.h"
#include "training/recipe/recipe.h"
#include "training/recipe/schema.h"
#include "training/recipe/schema_rows.h"

namespace tessera::training {
namespace {

void validate_teacher(const Recipe& recipe) {
  const TrainRecipe& train = recipe.train;
  const auto needs_teacher = [&](bool given, const std::string& key) {
    check_key(train.teacher || !given, recipe, key,
              "needs train.teacher, the folder of the model to learn from");
  };
  needs_teacher(train.distill_temperature.has_value(), "train.distill_temperature");
  needs_teacher(train.distill_weight.has_value(), "train.distill_weight");
  const auto of_logits = [&](bool given, const std::string& key) {
    check_key(train.task == TaskKind::next_token || !given, recipe, key,
              "is for train.task: next_token; an encoder learns from embeddings");
  };
  of_logits(train.distill_temperature.has_value(), "train.distill_temperature");
  of_logits(train.distill_weight.has_value(), "train.distill_weight");
}

void validate_pruning(const Recipe& recipe) {
  const PruneRecipe& prune = recipe.train.prune;
  const std::string method = "train.prune.method";
  const bool others =
      prune.sparsity || prune.begin || prune.end || prune.every || prune.modules.has_value();
  check_key(prune.method || !others, recipe, method, "is missing: global, per_layer or 2:4");
  if (!prune.method) return;
  check_key(!trains_adapters(recipe), recipe, method,
            "prunes weights that are trained, and an adapter's model is frozen; prune the "
            "model that tessera convert --merge writes");
  check_key(prune.method != PruneMethod::two_four || prune.sparsity.value_or(0.5) == 0.5, recipe,
            "train.prune.sparsity", "of 2:4 is 0.5; leave it out");
  const std::int64_t begin = prune.begin.value_or(1), end = prune.end.value_or(begin);
  check_key(begin <= end, recipe, "train.prune.end", "{} is before train.prune.begin {}", end,
            begin);
  check_key(end <= recipe.train.steps, recipe, prune.end ? "train.prune.end" : "train.prune.begin",
            "{} is after the last step, train.steps {}", end, recipe.train.steps);
  const Placement place = offload_options(recipe).parameters;
  check_key(place == Placement::device, recipe, method,
            "needs the parameters on the device; leave sharding.offload.parameters out");
  if (prune.modules) {
    const NamePattern pattern(*prune.modules, fmt::format("{}: train.prune.modules:",
                                                          where(recipe, "train.prune.modules")));
  }
}

}  // namespace

void validate_compression(const Recipe& recipe) {
  validate_teacher(recipe);
  validate_pruning(recipe);
}

std::vector<RecipeKey> compression_keys() {
  using M = PruneMethod;
  return {
      default_is("none",
                 key(TESSERA_KEY(train, teacher),
                     "The folder of a model that the trained one learns from: one of transformers, "
                     "Sentence Transformers or Tessera, a folder of steps, an adapter. "
                     "[compression.md](compression.md).")),
      default_is("2.0", key(TESSERA_KEY(train, distill_temperature),
                            "`next_token`: the temperature of both models' logits.", above(0))),
      default_is(
          "0.5",
          key(TESSERA_KEY(train, distill_weight),
              "`next_token`: the weight of the teacher's part of the loss; that of the labels is "
              "1 - `distill_weight`.",
              Range{0, 1, true, false})),
      default_is(
          "none",
          choice(TESSERA_KEY(train, prune.method),
                 std::vector<Choice<M>>{
                     {"global", M::global}, {"per_layer", M::per_layer}, {"2:4", M::two_four}},
                 "Sets weights of small magnitude to zero: the smallest of all pruned "
                 "weights, of each weight, or two of four inputs in a row.")),
      default_is("0.5", key(TESSERA_KEY(train, prune.sparsity),
                            "The part of the pruned weights that is zero in the end.",
                            Range{0, 1, true, true})),
      default_is("1", key(TESSERA_KEY(train, prune.begin),
                          "The step after which the first weights are chosen.", at_least(1))),
      default_is("`begin`", key(TESSERA_KEY(train, prune.end),
                                "The step after which the last weights are chosen; the part of "
                                "zeros grows until then along a cubic curve.",
                                at_least(1))),
      default_is("100", key(TESSERA_KEY(train, prune.every),
                            "Steps between two choices from `begin` to `end`.", at_least(1))),
      default_is("all but the head",
                 key(TESSERA_KEY(train, prune.modules),
                     "The linear layers whose weights are pruned: a regular expression for whole "
                     "names.")),
  };
}

}  // namespace tessera::training
