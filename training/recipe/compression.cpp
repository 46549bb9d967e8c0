// The keys of runs that make a model smaller: a teacher, and pruning.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/nearest.h"
#include "engine/nn/name_pattern.h"
#include "training/recipe/recipe.h"
#include "training/recipe/schema.h"
#include "training/recipe/schema_rows.h"

namespace tessera::training {
namespace {

const std::vector<Choice<StateLoss>>& state_losses() {
  static const std::vector<Choice<StateLoss>> losses = {{"mse", StateLoss::mse},
                                                        {"cosine", StateLoss::cosine}};
  return losses;
}

constexpr std::string_view pairs_wanted = "a list of pairs, as [{student: h.1, teacher: h.5}]";

StatePair read_state(const YamlNode& node, const std::string& key) {
  if (node.kind != YamlNode::Kind::mapping) refuse_value(node, key, pairs_wanted);
  StatePair pair;
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& name = node.keys[i].text;
    const YamlNode& value = node.items[i];
    const std::string full = key + "." + name;
    if (name == "student" || name == "teacher") {
      (name == "student" ? pair.student : pair.teacher) = read_text(value, full);
    } else if (name == "weight") {
      pair.weight = read_number(value, full);
      check_range(value, full, above(0), pair.weight);
    } else if (name == "loss") {
      pair.loss = read_choice(value, full, state_losses());
    } else {
      fail(ErrorCode::configuration, "{}: unknown key {} of a pair in {}{}", node.keys[i].where,
           name, key, did_you_mean(name, {"student", "teacher", "weight", "loss"}));
    }
  }
  TESSERA_CHECK(!pair.student.empty() && !pair.teacher.empty(), ErrorCode::configuration,
                "{}: {}: a pair needs student and teacher, the names of a module of each model",
                node.where, key);
  return pair;
}

RecipeKey teacher_states_key() {
  RecipeKey row;
  row.name = "train.teacher_states";
  row.type = "list of pairs";
  row.help =
      "Modules whose outputs the trained model learns from the teacher's, as [{student: h.1, "
      "teacher: h.5}]: their names; `weight` (1.0) of the pair's part of the loss; `loss`: `mse`, "
      "or `cosine`. [compression.md](compression.md#hidden-states-and-attention).";
  row.optional = true;
  row.read = [name = row.name](Recipe& recipe, const YamlNode& node) {
    if (node.kind != YamlNode::Kind::sequence) {
      refuse_value(node, name, pairs_wanted);
    }
    recipe.train.teacher_states.clear();
    for (const YamlNode& item : node.items) {
      recipe.train.teacher_states.push_back(read_state(item, name));
    }
  };
  row.write = [](const Recipe& recipe) -> nlohmann::json {
    if (recipe.train.teacher_states.empty()) return nullptr;
    nlohmann::json list = nlohmann::json::array();
    for (const StatePair& pair : recipe.train.teacher_states) {
      list.push_back({{"student", pair.student},
                      {"teacher", pair.teacher},
                      {"weight", pair.weight},
                      {"loss", choice_name(state_losses(), pair.loss)}});
    }
    return list;
  };
  return row;
}

// `none` is a value, and not only the default: it switches pruning off beside its other keys.
RecipeKey prune_method_key() {
  using M = PruneMethod;
  RecipeKey row = default_is(
      "none", choice(TESSERA_KEY(train, prune.method),
                     std::vector<Choice<M>>{{"global", M::global},
                                            {"per_layer", M::per_layer},
                                            {"2:4", M::two_four},
                                            {"wanda", M::wanda},
                                            {"wanda_2:4", M::wanda_two_four}},
                     "Sets weights of small magnitude to zero: the smallest of all pruned "
                     "weights, of each weight, or two of four inputs in a row. `wanda`: the "
                     "smallest magnitudes times norms of inputs, of each output."));
  row.type = "none \\| " + row.type;
  row.read = [read = row.read](Recipe& recipe, const YamlNode& node) {
    const bool none = node.kind == YamlNode::Kind::scalar && lower_case(node.text) == "none";
    recipe.train.prune.method.reset();
    if (!none) read(recipe, node);
  };
  return row;
}

void validate_teacher(const Recipe& recipe) {
  const TrainRecipe& train = recipe.train;
  check_key(!train.teacher || train.task != TaskKind::dpo, recipe, "train.teacher",
            "is for train.task: next_token, sft and sentence_pairs");
  const auto needs_teacher = [&](bool given, const std::string& key) {
    check_key(train.teacher || !given, recipe, key,
              "needs train.teacher, the folder of the model to learn from");
  };
  needs_teacher(train.distill_temperature.has_value(), "train.distill_temperature");
  needs_teacher(train.distill_weight.has_value(), "train.distill_weight");
  needs_teacher(!train.teacher_states.empty(), "train.teacher_states");
  const auto of_logits = [&](bool given, const std::string& key) {
    check_key(train.task != TaskKind::sentence_pairs || !given, recipe, key,
              "is for train.task: next_token and sft; an encoder learns from embeddings");
  };
  of_logits(train.distill_temperature.has_value(), "train.distill_temperature");
  of_logits(train.distill_weight.has_value(), "train.distill_weight");
}

void validate_pruning(const Recipe& recipe) {
  const PruneRecipe& prune = recipe.train.prune;
  const std::string method = "train.prune.method";
  const bool others = prune.sparsity || prune.begin || prune.end || prune.every ||
                      prune.modules.has_value() || prune.calibration_batches;
  check_key(prune.method || !others || recipe.given.contains(method), recipe, method,
            "is missing: global, per_layer, 2:4, wanda or wanda_2:4");
  if (!prune.method) return;
  check_key(!trains_adapters(recipe), recipe, method,
            "prunes weights that are trained, and an adapter's model is frozen; prune the "
            "model that tessera convert --merge writes");
  check_key(!is_two_four(*prune.method) || prune.sparsity.value_or(0.5) == 0.5, recipe,
            "train.prune.sparsity", "of 2:4 is 0.5; leave it out");
  check_key(weighs_inputs(*prune.method) || !prune.calibration_batches, recipe,
            "train.prune.calibration_batches",
            "is for the methods wanda and wanda_2:4, which read the inputs of layers");
  const std::int64_t begin = prune.begin.value_or(1), end = prune.end.value_or(begin);
  check_key(begin <= end, recipe, "train.prune.end", "{} is before train.prune.begin {}", end,
            begin);
  check_key(end <= recipe.train.steps, recipe, prune.end ? "train.prune.end" : "train.prune.begin",
            "{} is after the last step, train.steps {}", end, recipe.train.steps);
  check_key(recipe.train.optimizer != OptimizerKind::schedule_free_adamw, recipe, method,
            "sets weights to zero, and schedule_free_adamw saves an average of them; take another "
            "train.optimizer");
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
  return {
      default_is("none",
                 key(TESSERA_KEY(train, teacher),
                     "The folder of a model that the trained one learns from: one of transformers, "
                     "Sentence Transformers or Tessera, a folder of steps, an adapter. "
                     "[compression.md](compression.md).")),
      default_is("2.0",
                 key(TESSERA_KEY(train, distill_temperature),
                     "`next_token` and `sft`: the temperature of both models' logits.", above(0))),
      default_is("0.5", key(TESSERA_KEY(train, distill_weight),
                            "`next_token` and `sft`: the weight of the teacher's part of the loss; "
                            "that of the labels is "
                            "1 - `distill_weight`.",
                            Range{0, 1, true, false})),
      default_is("none", teacher_states_key()),
      prune_method_key(),
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
      default_is("8", key(TESSERA_KEY(train, prune.calibration_batches),
                          "`wanda`: the batches of each rank, the next ones of training, over "
                          "which the norms of inputs are taken.",
                          at_least(1))),
  };
}

}  // namespace tessera::training
