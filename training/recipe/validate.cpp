// Checks between keys and against the number of ranks.
#include <fmt/format.h>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "engine/data/tokenizer.h"
#include "models/registry/registry.h"
#include "training/recipe/fine_tuning.h"
#include "training/recipe/optimizers.h"
#include "training/recipe/recipe.h"
#include "training/recipe/reshard_keys.h"
#include "training/recipe/schema.h"

namespace tessera::training {
namespace {

// The value of the key with this role in the architecture's configuration.
std::pair<std::string, std::int64_t> configured(const Recipe& recipe, models::ConfigKey::Role role,
                                                const models::Architecture& architecture) {
  for (const models::ConfigKey& key : architecture.keys()) {
    if (key.role == role) {
      return {"model." + key.name, recipe.model.config.at(key.name).get<std::int64_t>()};
    }
  }
  misuse("the architecture {} lacks a key that all architectures have", architecture.model_type);
}

// Keys of sentences belong to their task, and that task needs them.
void validate_data_set(const Recipe& recipe, const DataSetRecipe& set, const std::string& key) {
  const bool training = key == "data.train";
  const auto check_set = [&](bool holds, std::string_view text) {
    TESSERA_CHECK(holds, ErrorCode::configuration, "{}: {}: {}", set.where, key, text);
  };
  if (predicts_tokens(recipe)) {
    check_set(
        set.columns.size() <= (recipe.train.task == TaskKind::dpo ? 3 : 2) &&
            set.loss == SentenceLoss::none && set.evaluator == SentenceEvaluator::none &&
            set.labels.empty() && !set.header && !set.num_labels && !set.label_scale && !set.scale,
        "a data set with more than two columns, or with a loss, an evaluator, labels, a scale or "
        "a header, is for train.task: sentence_pairs");
    check_set(
        set.format == tasks::TableFormat::automatic || set.format == tasks::TableFormat::jsonl,
        "the format of a language model's data is auto or jsonl; without it a text is taken "
        "as it is");
    return;
  }
  check_set(
      set.loss != SentenceLoss::none || !training,
      "needs a loss: cosine_similarity, softmax, multiple_negatives_ranking, mse or margin_mse");
  check_set(set.evaluator != SentenceEvaluator::none || training,
            "needs an evaluator: similarity, accuracy or triplet");
  check_set(training ? set.evaluator == SentenceEvaluator::none : set.loss == SentenceLoss::none,
            training ? "evaluator is a key of data.valid" : "loss is a key of data.train");
  const bool classes =
      set.loss == SentenceLoss::softmax || set.evaluator == SentenceEvaluator::accuracy;
  check_set(set.loss != SentenceLoss::softmax || !set.labels.empty() || set.num_labels,
            "softmax needs labels, the names of the classes, or num_labels");
  check_set(classes || (set.labels.empty() && !set.num_labels),
            "labels and num_labels are for the loss softmax and the evaluator accuracy");
  check_set(set.labels.empty() || !set.num_labels ||
                *set.num_labels == static_cast<std::int64_t>(set.labels.size()),
            "num_labels is not the number of labels; leave it out");
  check_set(set.labels.empty() || set.labels.size() > 1,
            "labels has one name; classes are two or more");
  check_set(!set.scale || set.loss == SentenceLoss::multiple_negatives_ranking,
            "scale is for the loss multiple_negatives_ranking");
}

void validate_data(const Recipe& recipe) {
  check_key(!recipe.data.train.empty(), recipe, "data.train",
            "is missing: the text file to train on");
  check_key(recipe.data.valid.size() <= 1, recipe, "data.valid", "is one data set, not {}",
            recipe.data.valid.size());
  for (const DataSetRecipe& set : recipe.data.train) validate_data_set(recipe, set, "data.train");
  for (const DataSetRecipe& set : recipe.data.valid) validate_data_set(recipe, set, "data.valid");
  const bool tunes = recipe.train.task == TaskKind::sft;
  check_key(!recipe.data.packing || tunes, recipe, "data.packing", "is for train.task: sft");
  check_key(recipe.data.loss_on == tasks::LossOn::answers || tunes, recipe, "data.loss_on",
            "is for train.task: sft");
  check_key(!recipe.data.deal_by_cost || (tunes && !recipe.data.packing), recipe,
            "data.deal_by_cost",
            "is for train.task: sft without data.packing; other samples cost the same");
  check_key(!recipe.data.deal_by_cost || recipe.data.rank_weights.are_equal(), recipe,
            "data.deal_by_cost", "and data.rank_weights exclude each other; leave one of them out");
  const StepRamp& ramp = recipe.data.seq_len_ramp;
  check_key(ramp.empty() || recipe.train.task == TaskKind::next_token, recipe, "data.seq_len_ramp",
            "is for train.task: next_token");
  for (const auto& [step, length] : ramp.changes) {
    check_key(recipe.model.seq_len % length == 0, recipe, "data.seq_len_ramp",
              "has {} for step {}; it must divide model.seq_len {}", length, step,
              recipe.model.seq_len);
  }
  check_key(!recipe.data.group_by_length || recipe.train.task == TaskKind::sentence_pairs, recipe,
            "data.group_by_length", "is for train.task: sentence_pairs");
}

void validate_rank_weights(const Recipe& recipe, int world_size) {
  const RankWeightOptions& weights = recipe.data.rank_weights;
  // Recipe::given does not tell: the JSON of a recipe gives every key.
  const RankWeightOptions by_default;
  const auto needs_auto = [&](bool is_default, const char* key) {
    check_key(weights.measured || is_default, recipe, key, "needs data.rank_weights: auto");
  };
  needs_auto(weights.rebalance_every == by_default.rebalance_every, "data.rebalance_every");
  needs_auto(weights.limit == by_default.limit, "data.rank_weights_limit");
  check_key(weights.given.empty() || weights.given.size() == static_cast<std::size_t>(world_size),
            recipe, "data.rank_weights", "has {} for {}; give one for each rank, or auto",
            counted(weights.given.size(), "weight"), counted(world_size, "rank"));
}

void validate_model(const Recipe& recipe) {
  if (recipe.model.pretrained) return;
  using Role = models::ConfigKey::Role;
  const models::ConfigSource source = config_source(recipe);
  const models::Architecture& architecture = models::architecture_of(recipe.model.config, source);
  architecture.check(recipe.model.config, source);
  const std::int64_t bytes = ByteTokenizer().vocabulary_size();
  const auto vocabulary = configured(recipe, Role::vocabulary, architecture);
  const bool reads_bytes = recipe.data.tokenizer.value_or("bytes") == "bytes";
  check_key(!reads_bytes || vocabulary.second >= bytes, recipe, vocabulary.first,
            "{} is less than the {} tokens of data.tokenizer: bytes", vocabulary.second, bytes);
  const bool encodes = architecture.kind == models::ModelKind::text_encoder;
  const bool pairs = !predicts_tokens(recipe);
  check_key(encodes || !pairs, recipe, "model.architecture",
            "{} predicts the next token; train.task: sentence_pairs needs an encoder: {}",
            recipe.model.architecture, models::model_types(models::ModelKind::text_encoder));
  check_key(!encodes || pairs, recipe, "model.architecture",
            "{} is an encoder; set train.task: sentence_pairs", recipe.model.architecture);
  const auto positions = configured(recipe, Role::positions, architecture);
  check_key(recipe.model.seq_len <= positions.second, recipe, "model.seq_len",
            "{} is more than the {} of {}", recipe.model.seq_len, positions.second,
            positions.first);
}

void validate_schedule(const Recipe& recipe) {
  const TrainRecipe& train = recipe.train;
  const optim::ScheduleRow& row = optim::row_of(train.lr_schedule);
  check_key(train.lr_schedule == optim::ScheduleKind::polynomial || !train.lr_power, recipe,
            "train.lr_power", "belongs to train.lr_schedule: polynomial");
  check_key(train.lr_schedule == optim::ScheduleKind::cosine_with_restarts || !train.lr_cycles,
            recipe, "train.lr_cycles", "belongs to train.lr_schedule: cosine_with_restarts");
  if (!row.has_stable_phase) {
    check_key(!train.lr_decay_start, recipe, "train.lr_decay_start",
              "belongs to train.lr_schedule: wsd_linear, wsd_cosine and wsd_1_sqrt");
    return;
  }
  check_key(train.lr_decay_start.has_value(), recipe, "train.lr_schedule",
            "{} needs train.lr_decay_start, the step at which the decay begins", row.name);
  const std::int64_t start = *train.lr_decay_start;
  const std::int64_t end = train.lr_decay_steps.value_or(train.steps);
  check_key(start >= train.warmup_steps, recipe, "train.lr_decay_start",
            "{} is before the end of the warm-up, train.warmup_steps {}", start,
            train.warmup_steps);
  check_key(start < end, recipe, "train.lr_decay_start",
            "{} is not before the end of the decay, {} {}", start,
            train.lr_decay_steps ? "train.lr_decay_steps" : "train.steps", end);
}

void validate_train(const Recipe& recipe) {
  const TrainRecipe& train = recipe.train;
  check_key(train.min_lr <= train.lr, recipe, "train.min_lr", "{} is above train.lr {}",
            train.min_lr, train.lr);
  check_key(train.optimizer == OptimizerKind::sgd || train.momentum == 0, recipe, "train.momentum",
            "is SGD's; leave it out or set train.optimizer: sgd{}",
            train.optimizer == OptimizerKind::muon ? "; Muon's is train.muon.momentum" : "");
  check_key(train.spike_sigma || train.spike_window == SpikeOptions{}.window, recipe,
            "train.spike_window", "needs train.spike_sigma");
  const bool saves = recipe.checkpoint.dir && recipe.checkpoint.every > 0;
  check_key(train.on_spike != SpikeAction::rollback || saves, recipe, "train.on_spike",
            "rollback needs checkpoint.dir and checkpoint.every");
  validate_schedule(recipe);
}

void check_divides(const Recipe& recipe, const std::string& key, std::int64_t group,
                   int world_size) {
  check_key(
      world_size % group == 0, recipe, key,
      "{0} does not divide the {1} rank{2} of the world; start a multiple of {0} ranks (tessera "
      "launch --nproc-per-node {3}), or set a divisor of {1}",
      group, world_size, world_size == 1 ? "" : "s", (world_size / group + 1) * group);
}

void validate_context_parallel(const Recipe& recipe, int world_size) {
  const std::int64_t ranks = recipe.sharding.context_parallel;
  if (ranks == 1) return;
  const std::string key = "sharding.context_parallel";
  check_divides(recipe, key, ranks, world_size);
  const TaskKind task = recipe.train.task;
  check_key(task == TaskKind::next_token || task == TaskKind::sft, recipe, key,
            "is for train.task: next_token and sft");
  check_key(recipe.model.seq_len % ranks == 0, recipe, key,
            "{} does not divide model.seq_len {}; each rank has an equal part of a sequence", ranks,
            recipe.model.seq_len);
  for (const auto& [step, length] : recipe.data.seq_len_ramp.changes) {
    check_key(length % ranks == 0, recipe, key, "{} does not divide the {} of data.seq_len_ramp",
              ranks, length);
  }
  check_key(recipe.data.rank_weights.are_equal(), recipe, key,
            "and data.rank_weights exclude each other; leave one of them out");
}

void validate_sharding(const Recipe& recipe, int world_size) {
  const ShardingRecipe& sharding = recipe.sharding;
  if (is_hybrid(sharding.sharding_strategy) && sharding.group_size) {
    check_divides(recipe, "sharding.group_size", *sharding.group_size, world_size);
  }
  if (sharding.reduction_group) {
    check_divides(recipe, "sharding.reduction_group", *sharding.reduction_group, world_size);
  }
  if (sharding.defer_replica_sums) {
    const std::string key = "sharding.defer_replica_sums";
    check_key(is_hybrid(sharding.sharding_strategy), recipe, key,
              "is for HYBRID_SHARD and HYBRID_SHARD_ZERO2: {} has no sums between groups",
              name_of(sharding.sharding_strategy));
    check_key(sharding.group_size != 1, recipe, key,
              "needs a sharding.group_size above 1; train.sync_each_batch: false defers all sums");
    check_key(
        recipe.train.sync_each_batch, recipe, key,
        "and train.sync_each_batch: false, which defers all sums, exclude each other; leave one "
        "of them out");
  }
  validate_context_parallel(recipe, world_size);
  check_key(sharding.transformer_layer_cls_to_wrap.empty() ||
                sharding.auto_wrap_policy == AutoWrapPolicy::transformer_based,
            recipe, "sharding.transformer_layer_cls_to_wrap",
            "belongs to auto_wrap_policy: TRANSFORMER_BASED_WRAP");
}

void validate_recomputation(const Recipe& recipe) {
  const ShardingRecipe& sharding = recipe.sharding;
  const bool on = sharding.activation_checkpointing != ActivationCheckpointing::none;
  const bool classes = !sharding.activation_checkpointing_cls.empty();
  const auto needs_it = [&](bool given, const std::string& key) {
    check_key(on || !given, recipe, key,
              "needs sharding.activation_checkpointing: true or selective");
  };
  needs_it(classes, "sharding.activation_checkpointing_cls");
  needs_it(sharding.activation_checkpointing_every != 1, "sharding.activation_checkpointing_every");
  needs_it(sharding.activation_offload, "sharding.activation_offload");
  check_key(!on || classes || sharding.auto_wrap_policy != AutoWrapPolicy::none, recipe,
            "sharding.activation_checkpointing",
            "works by units, but with auto_wrap_policy: NO_WRAP the only unit is the root; name "
            "classes in sharding.activation_checkpointing_cls");
}

void validate_offload(const Recipe& recipe) {
  const OffloadRecipe& offload = recipe.sharding.offload;
  const bool files = offload_options(recipe).uses_files();
  check_key(
      !files || offload.folder, recipe, "sharding.offload.folder",
      "is missing: the folder, on a disk, for the state that sharding.offload places in a file");
  check_key(!offload.folder || files, recipe, "sharding.offload.folder",
            "needs file as one of sharding.offload.parameters, gradients, optimizer");
  check_key(!offload.folder || !offload.folder->empty(), recipe, "sharding.offload.folder",
            "is empty");
}

void validate_log(const Recipe& recipe) {
  const LogRecipe& log = recipe.log;
  if (!log.trace_steps) return;
  const auto [first, last] = *log.trace_steps;
  check_key(log.trace.has_value(), recipe, "log.trace_steps",
            "needs log.trace, the file for the trace");
  check_key(first <= last, recipe, "log.trace_steps",
            "is the first and the last step, got [{}, {}]", first, last);
  check_key(last <= recipe.train.steps, recipe, "log.trace_steps",
            "[{}, {}] goes beyond the {} of train.steps", first, last,
            counted(recipe.train.steps, "step"));
}

}  // namespace

OffloadOptions offload_options(const Recipe& recipe) {
  const OffloadRecipe& offload = recipe.sharding.offload;
  const Placement otherwise = recipe.sharding.offload_params ? Placement::host : Placement::device;
  OffloadOptions options;
  options.parameters = offload.parameters.value_or(otherwise);
  options.gradients = offload.gradients.value_or(otherwise);
  options.optimizer = offload.optimizer.value_or(otherwise);
  options.folder = offload.folder.value_or("");
  return options;
}

void validate(const Recipe& recipe, int world_size) {
  TESSERA_REQUIRE(world_size > 0, "validate() needs a world of at least one rank, got {}",
                  world_size);
  validate_data(recipe);
  validate_rank_weights(recipe, world_size);
  validate_model(recipe);
  validate_train(recipe);
  validate_sharding(recipe, world_size);
  validate_schedule(recipe, world_size);
  validate_precision(recipe);
  validate_recomputation(recipe);
  validate_offload(recipe);
  validate_log(recipe);
  validate_fine_tuning(recipe);
  validate_optimizer(recipe);
  validate_compression(recipe);
  validate_preferences(recipe);
  check_key(
      !recipe.data.split_batches || recipe.data.batch_size % batch_shares(recipe, world_size) == 0,
      recipe, "data.batch_size", "{} cannot be split over {} (data.split_batches: true)",
      recipe.data.batch_size, counted(world_size, "rank"));
  const bool wants_checkpoints =
      recipe.checkpoint.every != CheckpointRecipe().every && recipe.checkpoint.every > 0;
  check_key(recipe.checkpoint.dir || !wants_checkpoints, recipe, "checkpoint.every",
            "needs checkpoint.dir, the folder to save into");
  check_key(!recipe.checkpoint.async || (recipe.checkpoint.dir && recipe.checkpoint.every > 0),
            recipe, "checkpoint.async", "needs checkpoint.dir and checkpoint.every");
  check_key(!recipe.checkpoint.export_folder || !recipe.checkpoint.export_folder->empty(), recipe,
            "checkpoint.export", "is empty");
  check_key(recipe.checkpoint.keep_best == 0 || !recipe.data.valid.empty(), recipe,
            "checkpoint.keep_best",
            "needs data.valid, the text whose loss decides which checkpoint is best");
}

std::int64_t batch_size_per_rank(const Recipe& recipe, int world_size) {
  if (!recipe.data.split_batches) return recipe.data.batch_size;
  return recipe.data.batch_size / batch_shares(recipe, world_size);
}

std::int64_t batch_shares(const Recipe& recipe, int world_size) {
  return world_size / recipe.sharding.context_parallel;
}

}  // namespace tessera::training
