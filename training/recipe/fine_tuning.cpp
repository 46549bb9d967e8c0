// Reading and checking the keys of fine-tuning.
#include "training/recipe/fine_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/text/nearest.h"
#include "engine/nn/name_pattern.h"
#include "training/recipe/schema_rows.h"
#include "training/recipe/values.h"

namespace tessera::training {
namespace {

void check_expression(const std::string& text, const std::string& place, const std::string& key) {
  const NamePattern pattern(text, fmt::format("{}: {}:", place, key));
}

ParameterGroupRecipe read_group(const YamlNode& node, const std::string& key) {
  if (node.kind != YamlNode::Kind::mapping) {
    refuse_value(node, key, "a list of groups, as {pattern: .*bias, lr: 1.0e-4}");
  }
  ParameterGroupRecipe group;
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& name = node.keys[i].text;
    const YamlNode& value = node.items[i];
    const std::string full = key + "." + name;
    if (name == "pattern") {
      group.pattern = read_text(value, full);
      check_expression(group.pattern, value.where, full);
    } else if (name == "lr" || name == "weight_decay") {
      const double number = read_number(value, full);
      check_range(value, full, at_least(0), number);
      (name == "lr" ? group.lr : group.weight_decay) = number;
    } else {
      fail(ErrorCode::configuration, "{}: unknown key {} of a parameter group{}",
           node.keys[i].where, name, did_you_mean(name, {"pattern", "lr", "weight_decay"}));
    }
  }
  TESSERA_CHECK(!group.pattern.empty(), ErrorCode::configuration,
                "{}: {}: a group needs a pattern, which its parameters' whole names match",
                node.where, key);
  TESSERA_CHECK(group.lr || group.weight_decay, ErrorCode::configuration,
                "{}: {}: the group \"{}\" has no settings; give lr or weight_decay", node.where,
                key, group.pattern);
  return group;
}

void validate_groups(const Recipe& recipe) {
  for (const ParameterGroupRecipe& group : recipe.train.parameter_groups) {
    check_key(!group.lr || recipe.train.lr > 0, recipe, "train.parameter_groups",
              "gives \"{}\" an lr, which follows the schedule of train.lr, but train.lr is 0",
              group.pattern);
  }
}

// `example` shows a list.
ModuleNamesRecipe read_module_names(const YamlNode& node, const std::string& key,
                                    std::string_view example) {
  ModuleNamesRecipe modules;
  if (node.kind == YamlNode::Kind::sequence) {
    modules.names = read_texts(node, key);
    TESSERA_CHECK(!modules.names.empty(), ErrorCode::configuration,
                  "{}: {} is an empty list; name {}", node.where, key, example);
    return modules;
  }
  modules.pattern = read_text(node, key);
  TESSERA_CHECK(!modules.pattern.empty(), ErrorCode::configuration, "{}: {} is empty", node.where,
                key);
  check_expression(modules.pattern, node.where, key);
  return modules;
}

nlohmann::json write_module_names(const std::optional<ModuleNamesRecipe>& modules) {
  if (!modules) return nullptr;
  if (modules->pattern.empty()) return modules->names;
  return modules->pattern;
}

std::vector<ParameterGroupRecipe> read_parameter_groups(const YamlNode& node,
                                                        const std::string& key) {
  if (node.kind != YamlNode::Kind::sequence) {
    refuse_value(node, key, "a list of groups, as [{pattern: .*bias, lr: 1.0e-4}]");
  }
  std::vector<ParameterGroupRecipe> groups;
  for (const YamlNode& item : node.items) groups.push_back(read_group(item, key));
  return groups;
}

nlohmann::json write_parameter_groups(const std::vector<ParameterGroupRecipe>& groups) {
  nlohmann::json list = nlohmann::json::array();
  for (const ParameterGroupRecipe& group : groups) {
    nlohmann::json one{{"pattern", group.pattern}};
    if (group.lr) one["lr"] = *group.lr;
    if (group.weight_decay) one["weight_decay"] = *group.weight_decay;
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace

bool trains_adapters(const Recipe& recipe) {
  return recipe.model.lora.target_modules.has_value() || recipe.model.adapter.has_value();
}

nn::LoraOptions lora_options(const Recipe& recipe) {
  const LoraRecipe& lora = recipe.model.lora;
  nn::LoraOptions options;
  options.rank = lora.r.value_or(options.rank);
  options.alpha = lora.alpha.value_or(options.alpha);
  options.dropout = lora.dropout.value_or(options.dropout);
  options.rslora = lora.use_rslora.value_or(options.rslora);
  options.dora = lora.use_dora.value_or(options.dora);
  options.rank_pattern = lora.rank_pattern;
  options.alpha_pattern = lora.alpha_pattern;
  options.modules_to_save = lora.modules_to_save.value_or(std::vector<std::string>());
  options.target_modules = lora.target_modules.value().names;
  options.target_pattern = lora.target_modules->pattern;
  return options;
}

void validate_fine_tuning(const Recipe& recipe) {
  const LoraRecipe& lora = recipe.model.lora;
  const bool some = lora.r || lora.alpha || lora.dropout || lora.use_rslora || lora.use_dora ||
                    !lora.rank_pattern.empty() || !lora.alpha_pattern.empty() ||
                    lora.modules_to_save;
  const std::string targets = "model.lora.target_modules";
  check_key(!some || lora.target_modules, recipe, targets,
            "is missing: the linear layers that get an adapter, as [q_proj, v_proj]; all-linear "
            "means all but the head");
  check_key(!recipe.model.adapter || !(some || lora.target_modules), recipe, "model.adapter",
            "has its own adapter_config.json; leave model.lora out");
  const nn::LoraOptions factor = lora.target_modules ? lora_options(recipe) : nn::LoraOptions();
  check_key(factor.can_scale(), recipe, "model.lora.alpha", "is {}, too much to multiply by",
            factor.alpha);
  validate_groups(recipe);
  validate_quantized_base(recipe);
  const bool rounds = recipe.model.quantize_aware != WeightRounding::none;
  check_key(!rounds || predicts_tokens(recipe), recipe, "model.quantize_aware",
            "is for language models, which GGUF files hold");
  check_key(!rounds || !trains_adapters(recipe), recipe, "model.quantize_aware",
            "rounds weights that are trained, and under an adapter they are frozen");
  if (!trains_adapters(recipe)) return;
  const std::string key = recipe.model.adapter ? "model.adapter" : targets;
  const bool keeps = recipe.checkpoint.dir.has_value() && recipe.checkpoint.every > 0;
  check_key(recipe.model.pretrained || !(keeps || recipe.model.adapter), recipe, key,
            "needs model.pretrained, the folder of the model under the adapter: a checkpoint has "
            "the adapter alone");
  check_key(!keeps || recipe.checkpoint.state_dict_type == checkpoint::StateDictType::full, recipe,
            "checkpoint.state_dict_type",
            "SHARDED_STATE_DICT cannot hold an adapter, which is one file; use FULL_STATE_DICT");
  check_key(!recipe.checkpoint.export_folder, recipe, "checkpoint.export",
            "is for whole models; tessera convert --merge writes one from a step with an adapter");
}

RecipeKey target_modules_key() {
  RecipeKey row;
  row.name = "model.lora.target_modules";
  row.type = "list of names \\| text";
  row.help =
      "The linear layers that get an adapter; the adapters are trained in place of the model. "
      "Names or ends of names as [q_proj, v_proj], a regular expression for whole names, or "
      "`all-linear`: all but the head.";
  row.optional = true;
  row.read = [name = row.name](Recipe& recipe, const YamlNode& node) {
    recipe.model.lora.target_modules =
        read_module_names(node, name, "the linear layers, as [q_proj, v_proj]");
  };
  row.write = [](const Recipe& recipe) {
    return write_module_names(recipe.model.lora.target_modules);
  };
  return row;
}

namespace {

// A mapping of patterns to numbers, which `take` reads and checks.
template <class T, class Take>
std::vector<std::pair<std::string, T>> read_patterns(const YamlNode& node, const std::string& key,
                                                     const Take& take) {
  if (node.kind != YamlNode::Kind::mapping) {
    refuse_value(node, key, "patterns with numbers, as {q_proj: 16}");
  }
  std::vector<std::pair<std::string, T>> patterns;
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& pattern = node.keys[i].text;
    check_expression(pattern, node.keys[i].where, key);
    patterns.emplace_back(pattern, take(node.items[i], key + "." + pattern));
  }
  return patterns;
}

template <class T>
nlohmann::json write_patterns(const std::vector<std::pair<std::string, T>>& patterns) {
  if (patterns.empty()) return nullptr;
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [pattern, value] : patterns) object[pattern] = value;
  return object;
}

RecipeKey pattern_key(const std::string& name, const std::string& help) {
  RecipeKey row;
  row.name = name;
  row.type = "patterns with numbers";
  row.fallback = "none";
  row.help = help;
  row.optional = true;
  return row;
}

}  // namespace

RecipeKey rank_pattern_key() {
  RecipeKey row = pattern_key("model.lora.rank_pattern",
                              "Layers with another rank, as {q_proj: 16, 'h.0.*': 4}: a regular "
                              "expression for whole names or their ends after a dot.");
  row.read = [name = row.name](Recipe& recipe, const YamlNode& node) {
    recipe.model.lora.rank_pattern = read_patterns<
        std::int64_t>(node, name, [](const YamlNode& value, const std::string& key) {
      const std::int64_t rank = read_integer(value, key);
      check_range(value, key, Range{1, nn::max_lora_rank, false, false}, static_cast<double>(rank));
      return rank;
    });
  };
  row.write = [](const Recipe& recipe) { return write_patterns(recipe.model.lora.rank_pattern); };
  return row;
}

RecipeKey alpha_pattern_key() {
  RecipeKey row = pattern_key("model.lora.alpha_pattern", "The same for `alpha`.");
  row.read = [name = row.name](Recipe& recipe, const YamlNode& node) {
    recipe.model.lora.alpha_pattern =
        read_patterns<double>(node, name, [](const YamlNode& value, const std::string& key) {
          const double alpha = read_number(value, key);
          check_range(value, key, above(0), alpha);
          return alpha;
        });
  };
  row.write = [](const Recipe& recipe) { return write_patterns(recipe.model.lora.alpha_pattern); };
  return row;
}

RecipeKey ignored_modules_key() {
  RecipeKey row;
  row.name = "sharding.ignored_modules";
  row.type = "list of names \\| text";
  row.fallback = "none";
  row.help =
      "Modules that every rank has whole and in their own dtype, with the modules below them: full "
      "names, as [lm_head], or a regular expression for full names (Accelerate's "
      "`fsdp_ignored_modules`). They are frozen: their gradients are not reduced, so training them "
      "would make ranks drift apart.";
  row.optional = true;
  row.read = [name = row.name](Recipe& recipe, const YamlNode& node) {
    recipe.sharding.ignored_modules =
        read_module_names(node, name, "modules, as [lm_head, transformer.h.0]");
  };
  row.write = [](const Recipe& recipe) {
    return write_module_names(recipe.sharding.ignored_modules);
  };
  return row;
}

RecipeKey parameter_groups_key() {
  RecipeKey row;
  row.name = "train.parameter_groups";
  row.type = "list of groups";
  row.help =
      "Parameters with their own settings, as [{pattern: '.*lora_B.weight', lr: 1.0e-3, "
      "weight_decay: 0}]: a regular expression for whole names, the first that matches counts; "
      "`lr` follows the schedule of `train.lr`, `weight_decay` is for all of the group's.";
  row.optional = true;
  row.read = [name = row.name](Recipe& recipe, const YamlNode& node) {
    recipe.train.parameter_groups = read_parameter_groups(node, name);
  };
  row.write = [](const Recipe& recipe) -> nlohmann::json {
    if (recipe.train.parameter_groups.empty()) return nullptr;
    return write_parameter_groups(recipe.train.parameter_groups);
  };
  return row;
}

// The update is as large as AdamW's, so that train.lr has AdamW's meaning.
optim::MuonOptions muon_options(const TrainRecipe& train) {
  const MuonRecipe& muon = train.muon;
  optim::MuonOptions options;
  options.lr = train.lr;
  options.momentum = muon.momentum.value_or(options.momentum);
  options.nesterov = muon.nesterov.value_or(options.nesterov);
  options.ns_steps = static_cast<int>(muon.ns_steps.value_or(options.ns_steps));
  options.adjust_lr = muon.adjust_lr.value_or(optim::MuonRate::match_rms_adamw);
  options.products = muon.products.value_or(options.products);
  options.weight_decay = train.weight_decay;
  options.adamw_lr = muon.adamw_lr;
  if (train.betas) {
    options.beta1 = (*train.betas)[0];
    options.beta2 = (*train.betas)[1];
  }
  options.adamw_eps = train.eps;
  return options;
}

void validate_muon(const Recipe& recipe) {
  const MuonRecipe& muon = recipe.train.muon;
  const bool chosen = recipe.train.optimizer == OptimizerKind::muon;
  const auto of_muon = [&](bool given, const std::string& key) {
    check_key(chosen || !given, recipe, key, "is for train.optimizer: muon");
  };
  of_muon(muon.momentum.has_value(), "train.muon.momentum");
  of_muon(muon.nesterov.has_value(), "train.muon.nesterov");
  of_muon(muon.ns_steps.has_value(), "train.muon.ns_steps");
  of_muon(muon.adjust_lr.has_value(), "train.muon.adjust_lr");
  of_muon(muon.adamw_lr.has_value(), "train.muon.adamw_lr");
  of_muon(muon.products.has_value(), "train.muon.products");
  if (!chosen) return;
  check_key(!muon.adamw_lr || recipe.train.lr > 0 || *muon.adamw_lr == 0, recipe,
            "train.muon.adamw_lr", "follows train.lr, which is 0; set train.lr");
  const auto& groups = recipe.train.parameter_groups;
  const bool rates =
      std::any_of(groups.begin(), groups.end(),
                  [](const ParameterGroupRecipe& group) { return group.lr.has_value(); });
  check_key(!muon.adamw_lr || !rates, recipe, "train.muon.adamw_lr",
            "and an lr in train.parameter_groups exclude each other; give AdamW's parameters a "
            "group");
}

std::vector<RecipeKey> muon_keys() {
  using R = optim::MuonRate;
  return {
      default_is("0.95", key(TESSERA_KEY(train, muon.momentum), "`muon`: the momentum of matrices.",
                             from_up_to(0, 1))),
      default_is("true", key(TESSERA_KEY(train, muon.nesterov),
                             "`muon`: the gradient is added once more to the momentum.")),
      default_is("5", key(TESSERA_KEY(train, muon.ns_steps), "`muon`: Newton-Schulz steps.",
                          Range{1, 99, false, false})),
      default_is("match_rms_adamw",
                 choice(TESSERA_KEY(train, muon.adjust_lr),
                        std::vector<Choice<R>>{{"match_rms_adamw", R::match_rms_adamw},
                                               {"original", R::original}},
                        "`muon`: the factor of `lr` for a matrix of r rows and c columns: 0.2 * "
                        "sqrt(max(r, c)), with which AdamW's `lr` and `weight_decay` can be kept, "
                        "or sqrt(max(1, r / c)).")),
      default_is("`lr`", key(TESSERA_KEY(train, muon.adamw_lr),
                             "`muon`: the highest learning rate of AdamW's parameters; it follows "
                             "the schedule of `lr`.",
                             at_least(0))),
      default_is("bf16", choice(TESSERA_KEY(train, muon.products),
                                std::vector<Choice<DType>>{{"bf16", DType::bfloat16},
                                                           {"fp32", DType::float32}},
                                "`muon`: the dtype of the products of the Newton-Schulz steps, and "
                                "of what ranks send for them.")),
  };
}

tasks::PreferenceOptions preference_options(const Recipe& recipe) {
  const DpoRecipe& dpo = recipe.train.dpo;
  tasks::PreferenceOptions options;
  options.beta = dpo.beta.value_or(options.beta);
  options.loss = dpo.loss.value_or(options.loss);
  options.label_smoothing = dpo.label_smoothing.value_or(options.label_smoothing);
  return options;
}

bool has_reference(const Recipe& recipe) {
  return recipe.train.task == TaskKind::dpo &&
         (recipe.train.dpo.reference.has_value() || !trains_adapters(recipe));
}

void validate_preferences(const Recipe& recipe) {
  const DpoRecipe& dpo = recipe.train.dpo;
  const bool tunes = recipe.train.task == TaskKind::dpo;
  const auto of_dpo = [&](bool given, const std::string& key) {
    check_key(tunes || !given, recipe, key, "is for train.task: dpo");
  };
  of_dpo(dpo.beta.has_value(), "train.dpo.beta");
  of_dpo(dpo.loss.has_value(), "train.dpo.loss");
  of_dpo(dpo.label_smoothing.has_value(), "train.dpo.label_smoothing");
  of_dpo(dpo.reference.has_value(), "train.dpo.reference");
  if (!tunes) return;
  check_key(recipe.model.pretrained || dpo.reference, recipe, "train.task",
            "dpo needs model.pretrained, the model to start from and to compare with, or "
            "train.dpo.reference");
  check_key(!dpo.reference || !dpo.reference->empty(), recipe, "train.dpo.reference", "is empty");
  check_key(preference_options(recipe).loss == tasks::PreferenceLoss::sigmoid ||
                dpo.label_smoothing.value_or(0) == 0,
            recipe, "train.dpo.label_smoothing", "is for train.dpo.loss: sigmoid");
}

std::vector<RecipeKey> preference_keys() {
  using L = tasks::PreferenceLoss;
  return {
      default_is("0.1",
                 key(TESSERA_KEY(train, dpo.beta),
                     "`dpo`: how strongly the trained model is held at the reference.", above(0))),
      default_is("sigmoid",
                 choice(TESSERA_KEY(train, dpo.loss),
                        std::vector<Choice<L>>{
                            {"sigmoid", L::sigmoid}, {"ipo", L::ipo}, {"hinge", L::hinge}},
                        "`dpo`: the loss of a pair: DPO's own, IPO's or SLiC's "
                        "([data.md](data.md#preference-tuning)).")),
      default_is("0.0",
                 key(TESSERA_KEY(train, dpo.label_smoothing),
                     "`sigmoid`: the part of the pairs that is taken to be labelled the wrong way "
                     "round.",
                     Range{0, 0.5, false, false})),
      default_is("`model.pretrained`, or with an adapter the model under it",
                 key(TESSERA_KEY(train, dpo.reference),
                     "`dpo`: the folder of the frozen reference, which is sharded as the trained "
                     "model is: one of transformers or Tessera, a folder of steps, an adapter.")),
  };
}

}  // namespace tessera::training
