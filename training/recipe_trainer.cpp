// From the keys of a recipe to the options of a run.
#include "training/recipe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "checkpoint/io/collective.h"
#include "checkpoint/load/peft.h"
#include "checkpoint/save/export.h"
#include "engine/nn/lora.h"
#include "engine/nn/name_pattern.h"
#include "engine/nn/output_head.h"
#include "engine/random.h"
#include "models/load/adapter.h"
#include "models/load/magnitudes.h"
#include "models/load/quantized.h"
#include "models/mixture_of_experts.h"
#include "models/weights_bound.h"
#include "training/interruption.h"
#include "training/make_task.h"
#include "training/pretrained_folder.h"
#include "training/recipe/fine_tuning.h"
#include "training/recipe/optimizers.h"
#include "training/recipe_difference.h"
#include "training/reference.h"
#include "training/sharding_options.h"
#include "training/teacher.h"

namespace tessera::training {
namespace {

IgnoredModules ignored_modules(const Recipe& recipe, nn::Module& module,
                               const ShardingOptions& options) {
  try {
    return {module, options.ignored_modules, options.ignored_pattern};
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: sharding.{}",
                                          where(recipe, "sharding.ignored_modules"), error.what()));
  }
}

// The gradients of ignored modules are not reduced. Adapters in them would not be trained.
void freeze_ignored(const Recipe& recipe, nn::Module& module, const ShardingOptions& options) {
  const IgnoredModules ignored = ignored_modules(recipe, module, options);
  for (const OwnedParameter& parameter : ignored.parameters()) {
    TESSERA_CHECK(!trains_adapters(recipe) || !parameter.tensor.requires_grad(),
                  ErrorCode::configuration,
                  "{}: sharding.ignored_modules: {} is trained beside the model (model.lora), but "
                  "ignored modules are frozen; leave one of them out",
                  where(recipe, "sharding.ignored_modules"), parameter.name);
  }
  for (const auto& [name, part] : ignored.outermost()) freeze(*part);
}

optim::Schedule make_schedule(const TrainRecipe& train) {
  return {.kind = train.lr_schedule,
          .peak = train.lr,
          .minimum = train.min_lr,
          .warmup_steps = train.warmup_steps,
          .decay_steps = train.lr_decay_steps.value_or(train.steps),
          .decay_start = train.lr_decay_start.value_or(0),
          .power = train.lr_power.value_or(1.0),
          .cycles = train.lr_cycles.value_or(1)};
}

std::optional<PruningOptions> pruning_options(const Recipe& recipe, nn::Module& module) {
  const PruneRecipe& prune = recipe.train.prune;
  if (!prune.method) return std::nullopt;
  PruningOptions options;
  options.method = *prune.method;
  options.sparsity = prune.sparsity.value_or(options.sparsity);
  options.begin = prune.begin.value_or(options.begin);
  options.end = prune.end.value_or(options.begin);
  options.every = prune.every.value_or(options.every);
  options.calibration_batches = prune.calibration_batches.value_or(options.calibration_batches);
  std::optional<NamePattern> wanted;
  const std::string key = "train.prune.modules";
  if (prune.modules) wanted.emplace(*prune.modules, key + ":");
  TESSERA_CHECK(wanted || !models::has_experts(module), ErrorCode::configuration,
                "{}: train.prune does not prune the matrices of experts; name the layers that it "
                "prunes in {}",
                where(recipe, "train.prune.method"), key);
  for (const auto& [name, part] : module.named_modules()) {
    const auto* layer = dynamic_cast<const nn::LinearImpl*>(part);
    if (layer == nullptr || !(wanted ? wanted->matches(name) : !nn::is_output_head(name))) continue;
    if (!layer->stored_weight().requires_grad()) continue;  // frozen, as ignored modules are
    options.weights.push_back({name + ".weight", layer->layout() == WeightLayout::in_out});
  }
  TESSERA_CHECK(!options.weights.empty(), ErrorCode::configuration,
                "{}: {} \"{}\" is the whole name of no linear layer that is trained",
                where(recipe, key), key, prune.modules.value_or(""));
  return options;
}

// What the closures of a run's options need. The Trainer owns the task.
struct RecipeRun {
  Recipe recipe;
  Context context;
  tasks::ModelTask* task = nullptr;
  std::optional<nn::LoraOptions> adapter = {};  // set if adapters are trained
};
using SharedRun = std::shared_ptr<const RecipeRun>;

// It would leave the experts' matrices to AdamW, and take the stack of their biases for a matrix.
void check_muon(const RecipeRun& run) {
  if (run.recipe.train.optimizer != OptimizerKind::muon) return;
  TESSERA_CHECK(!models::trains_stacked_experts(run.task->module()), ErrorCode::configuration,
                "{}: train.optimizer: muon does not orthogonalise the matrices of this model's "
                "experts, which lie in one tensor; use adamw",
                where(run.recipe, "train.optimizer"));
}

// On a GPU `host` offloads, and on the CPU it changes nothing: the recipe alone does not say.
void check_offload(const RecipeRun& run) {
  const OffloadOptions offload = offload_options(run.recipe).on(run.context.device().stands_for());
  check_offloads(run.recipe, offload.uses_host(), "on the GPU");
}

std::optional<nn::LoraOptions> adapter_of(const Recipe& recipe) {
  if (const auto& folder = recipe.model.adapter) {
    TESSERA_CHECK(checkpoint::is_peft_folder(*folder), ErrorCode::configuration,
                  "{}: model.adapter: {} has no {}", where(recipe, "model.adapter"), *folder,
                  checkpoint::peft_config_file);
    return at_key(recipe, "model.adapter",
                  [&] { return models::lora_options(checkpoint::read_peft_config(*folder)); });
  }
  if (trains_adapters(recipe)) return lora_options(recipe);
  return std::nullopt;
}

// Adapters can be switched off for the answers of the model under them; modules that are trained
// whole cannot.
void check_reference(const RecipeRun& run) {
  const Recipe& recipe = run.recipe;
  if (recipe.train.task != TaskKind::dpo || has_reference(recipe)) return;
  check_key(!run.adapter || run.adapter->modules_to_save.empty(), recipe, "train.dpo.reference",
            "is missing: without it the reference is the trained model without its adapters, and "
            "the adapter's modules_to_save are trained whole; set train.dpo.reference to the "
            "folder of model.pretrained, of which the run then keeps a second copy");
}

InitialWeights initial_weights(const SharedRun& run) {
  const ModelRecipe& model = run->recipe.model;
  InitialWeights weights;
  if (model.pretrained) {
    weights.from.push_back({*model.pretrained});
    weights.load = [run](std::vector<checkpoint::LogicalTensor>& tensors) {
      const ModelRecipe& wanted = run->recipe.model;
      // Modules that are trained whole begin with the base's weights, or an adapter's folder has
      // them.
      std::vector<checkpoint::LogicalTensor> base = models::base_tensors(
          run->task->model(),
          wanted.adapter ? run->adapter->modules_to_save : std::vector<std::string>(), tensors);
      models::take_codes(run->task->model(), base);
      run->task->load_weights(*wanted.pretrained, base);
      if (wanted.adapter) models::load_lora(*wanted.adapter, run->task->model(), tensors);
    };
    weights.under_steps = run->adapter.has_value();
  }
  // An adapter's folder has its magnitudes.
  if (run->adapter && run->adapter->dora && !model.adapter) {
    weights.complete = [run](ShardedModel& sharded) {
      models::begin_magnitudes(sharded, run->task->module());
    };
  }
  if (model.adapter) weights.from.push_back({*model.adapter, true});
  return weights;
}

// The checkpoint of a run of adapters has the adapter alone: its tensors, the factor, and PEFT's
// description.
void save_adapter(const RecipeRun& run, CheckpointOptions& options) {
  SaveOptions& save = options.save;
  // The weights of an encoder's modules are small, and Sentence Transformers looks for them there.
  save.names = [folders = run.task->tensor_folders(),
                names = checkpoint::peft_names(run.adapter->modules_to_save)](
                   const std::string& name, bool trained) {
    const bool of_folder = folders.contains(name.substr(0, name.find('.')));
    return of_folder ? name : names(name, trained);
  };
  if (!run.recipe.model.pretrained) return;  // the run saves nothing
  save.model_file = "adapter_model";
  save.max_file_size = 0;
  options.left_out.insert("config.json");    // else transformers loads a whole model
  save.tensor_folders.insert("classifier");  // it is trained beside the adapters
  save.scalars.set("adapter/scaling", run.adapter->scaling());
  if (const auto format = quantized_base(run.recipe)) {
    save.scalars.set(checkpoint::base_format_scalar, name_of(*format));
  }
  const std::string base = std::filesystem::absolute(*run.recipe.model.pretrained).string();
  save.files[checkpoint::peft_config_file] =
      to_text(models::peft_config(run.task->model(), *run.adapter, base));
}

CheckpointOptions checkpoint_options(const SharedRun& run) {
  const Recipe& recipe = run->recipe;
  const CheckpointRecipe& chosen = recipe.checkpoint;
  CheckpointOptions options;
  options.dir = chosen.dir.value_or("");
  options.every = chosen.every;
  options.resume = chosen.resume;
  options.async = chosen.async;
  options.export_folder = chosen.export_folder.value_or("");
  options.save.type = chosen.state_dict_type;
  options.save.model_dtype = chosen.dtype;
  options.save.keep = static_cast<int>(chosen.keep);
  options.save.keep_best = static_cast<int>(chosen.keep_best);
  options.save.max_file_size = chosen.max_file_size;
  options.save.stall_timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(chosen.stall_timeout * 1000));
  options.save.files["recipe.json"] = to_text(recipe);
  if (recipe.model.pretrained) {
    options.files.push_back({"model.pretrained", [run] {
                               return checkpoint::read_model_files(*run->recipe.model.pretrained);
                             }});
  }
  options.files.push_back({"data.tokenizer", [run] { return tokenizer_files(run->recipe); }});
  if (run->adapter) save_adapter(*run, options);
  return options;
}

// Refuses a step with the recipe's keys that differ, or says which ones do. If the step lacks the
// pooler that the run keeps (older versions did not keep it), the pooler is that of
// model.pretrained.
CheckedStep check_step(const RecipeRun& run, const ShardedModel& model, const std::string& path) {
  const auto parameters = model.sharded_parameters();
  const bool keeps_pooler =
      !run.adapter && std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) {
        return parameter.name == models::pooler_weight;
      });
  const auto messages = checkpoint::run_on_all_ranks(
      run.context.communicator(), "reading the recipe of a step",
      [&] { return run.context.is_main() ? describe_step(path, keeps_pooler) : std::string(); });
  if (messages.front().empty()) return {};
  const SavedRecipe saved = parse_step_description(messages.front());
  require_same_training(decisive_differences(saved, run.recipe,
                                             run.task->model().config(run.recipe.checkpoint.dtype)),
                        saved.step);
  CheckedStep checked;
  if (const auto differences = allowed_changes(saved, run.recipe); !differences.empty()) {
    const auto [there, here] = texts_of(differences);
    checked.changed = {saved.step, there, here};
  }
  if (!keeps_pooler || saved.has_pooler) return checked;
  checked.names = [](const std::string& name, bool /*trained*/) {
    return name.starts_with("pooler.") ? std::string() : name;
  };
  return checked;
}

// The kind, and the layers with another rank or factor, in PEFT's names.
std::string patterns_of(const checkpoint::PeftConfig& config) {
  const auto text = [](const auto& pattern) {
    nlohmann::json values = nlohmann::json::object();  // sorted
    for (const auto& [layers, value] : pattern) values[layers] = value;
    return values.dump();
  };
  return fmt::format("use_dora {}, rank_pattern {} and alpha_pattern {}", config.dora,
                     text(config.rank_pattern), text(config.alpha_pattern));
}

// Compares the adapter's properties that change its results. The recipe's keys do not show them,
// because model.adapter names only a folder.
void check_adapter(const RecipeRun& run, const Scalars& scalars, const std::string& folder) {
  if (!run.adapter) return;
  const auto scaling = scalars.get<double>("adapter/scaling");
  const double own = run.adapter->scaling();
  TESSERA_CHECK(scaling == own, ErrorCode::configuration,
                "{}: the adapter there is multiplied by {}, and this one's alpha, r and use_rslora "
                "make {}; go on with the same",
                folder, scaling, own);
  const auto saved_base = scalars.get<std::string>(checkpoint::base_format_scalar, "");
  const auto format = quantized_base(run.recipe);
  const std::string own_base(format ? name_of(*format) : "");
  const auto base_text = [](const std::string& base) { return base.empty() ? "none" : base; };
  TESSERA_CHECK(saved_base == own_base, ErrorCode::configuration,
                "{}: was trained with model.quantize_base {}, and this run has {}; set "
                "model.quantize_base: {}",
                folder, base_text(saved_base), base_text(own_base), base_text(saved_base));
  if (!checkpoint::is_peft_folder(folder)) return;
  const std::string patterns = patterns_of(checkpoint::read_peft_config(folder));
  const std::string own_patterns =
      patterns_of(models::peft_config(run.task->model(), *run.adapter, ""));
  TESSERA_CHECK(patterns == own_patterns, ErrorCode::configuration,
                "{}: the adapter there has {}, and this one has {}; go on with the same", folder,
                patterns, own_patterns);
}

optim::OptimizerChoice optimizer_options(const TrainRecipe& train, nn::Module& module) {
  optim::OptimizerChoice choice = row_of(train.optimizer).options(train);
  std::visit(
      [&](auto& options) {
        if constexpr (requires { options.decay; }) options.decay = optim::decay_matrices;
        if constexpr (requires { options.matrices; }) {
          options.matrices = optim::hidden_matrices(module);
        }
      },
      choice);
  return choice;
}

TrainerOptions trainer_options(const SharedRun& run, std::int64_t batch_size,
                               ShardingOptions sharding) {
  const Recipe& recipe = run->recipe;
  const TrainRecipe& train = recipe.train;
  TrainerOptions options;
  options.steps = train.steps;
  options.batch_size = batch_size;
  options.gradient_accumulation_steps = train.gradient_accumulation_steps;
  options.accumulation_ramp = train.accumulation_ramp;
  options.rank_weights = recipe.data.rank_weights;
  options.deal_by_cost = recipe.data.deal_by_cost;
  options.context_parallel = static_cast<int>(recipe.sharding.context_parallel);
  options.sync_each_batch = train.sync_each_batch;
  options.max_grad_norm = train.max_grad_norm;
  options.sharding = std::move(sharding);
  options.loss_scale = loss_scale_options(recipe);
  options.spikes = {train.on_spike, train.spike_sigma, train.spike_window};
  options.pruning = pruning_options(recipe, run->task->module());
  check_muon(*run);
  check_offload(*run);
  options.optimizer = optimizer_options(train, run->task->module());
  options.schedule = make_schedule(train);
  options.data = {.mix = recipe.data.mix,
                  .seed = static_cast<std::uint64_t>(train.seed),
                  .even_batches = recipe.data.even_batches,
                  .drop_last = recipe.data.drop_last};
  options.checkpoint = checkpoint_options(run);
  options.initial_weights = initial_weights(run);
  options.checks.before_load = [run](const ShardedModel& model, const std::string& path) {
    return check_step(*run, model, path);
  };
  options.checks.after_load = [run](const Scalars& scalars, const std::string& folder) {
    check_adapter(*run, scalars, folder);
  };
  options.signals = [] { return RunSignals{InterruptionWatch::signal(), requested_saves()}; };
  options.names = {.source = recipe.source,
                   .given = recipe.given,
                   .learning_rate = "train.lr",
                   .initial_weights = "model.pretrained",
                   .export_folder = "checkpoint.export",
                   .rank_weights = "data.rank_weights",
                   .context_parallel = "sharding.context_parallel",
                   .deal_by_cost = "data.deal_by_cost"};
  options.are_checked = true;
  return options;
}

}  // namespace

Trainer make_trainer(const Recipe& recipe, const Context& context) {
  const auto run =
      std::make_shared<RecipeRun>(RecipeRun{with_model_folder(recipe, context), context});
  const std::int64_t batch_size = batch_size_per_rank(run->recipe, context.world_size());
  run->adapter = adapter_of(run->recipe);
  check_reference(*run);
  // Before the seed is set: initial values do not depend on a teacher.
  Teachers teachers;
  std::shared_ptr<LanguageTeacher> of_logits;
  if (recipe.train.teacher && recipe.train.task == TaskKind::sentence_pairs) {
    const auto teacher = std::make_shared<EncoderTeacher>(run->recipe, context);
    teacher->require_fit(run->recipe);
    teachers.of_embeddings = teacher;
  } else if (recipe.train.teacher) {
    teachers.of_logits = of_logits = std::make_shared<LanguageTeacher>(run->recipe, context);
  }
  std::shared_ptr<FrozenReference> reference;
  if (has_reference(recipe)) {
    teachers.of_answers = reference = std::make_shared<FrozenReference>(run->recipe, context);
  }
  manual_seed(static_cast<std::uint64_t>(recipe.train.seed));
  const bool planned = context.device().is_planned();
  if (run->recipe.model.pretrained) {
    models::check_weights_bound(*run->recipe.model.pretrained, model_configuration(run->recipe));
  }
  std::unique_ptr<tasks::ModelTask> task = make_task(run->recipe, planned, teachers);
  if (of_logits) of_logits->require_fit(run->recipe, task->model());
  if (reference) reference->require_fit(run->recipe, task->model());
  run->task = task.get();
  ShardingOptions sharding = sharding_options(run->recipe, context, task->model().layer_class());
  freeze_ignored(run->recipe, task->module(), sharding);
  return {std::move(task), context, trainer_options(run, batch_size, std::move(sharding))};
}

}  // namespace tessera::training
