// The recipe: the description of a training run, as typed values. docs/recipe.md describes every
// key; the table that reads them is in training/recipe/schema.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/checkpoint.h"
#include "comm/world.h"
#include "engine/nn/lora_options.h"
#include "engine/nn/weight_rounding.h"
#include "engine/optim/muon.h"
#include "engine/optim/schedule.h"
#include "sharding/context/loss_scaler.h"
#include "sharding/policy/options.h"
#include "tasks/batch_order.h"
#include "tasks/conversations/conversation.h"
#include "tasks/losses/preference_loss.h"
#include "tasks/sentence_pairs.h"
#include "tasks/table.h"
#include "trainer/pruning/options.h"
#include "trainer/rank_shares.h"
#include "trainer/spikes.h"
#include "training/recipe/yaml/yaml_tree.h"

namespace tessera::training {

enum class OptimizerKind : std::uint8_t {
  adamw,
  adamw8bit,
  lion,
  sgd,
  muon,
  adafactor,
  schedule_free_adamw
};
enum class TaskKind : std::uint8_t { next_token, sft, dpo, sentence_pairs };
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };
using ShardingStrategy = tessera::Strategy;
enum class AutoWrapPolicy : std::uint8_t { transformer_based, size_based, none };
using tessera::ActivationCheckpointing;
using tessera::BackwardPrefetch;
using tessera::ReshardAfterForward;
enum class MixedPrecision : std::uint8_t { no, bf16, fp16 };

constexpr bool is_hybrid(ShardingStrategy strategy) {
  return row_of(strategy).shards == ShardGroup::group;
}

// Modules, as model.lora.target_modules and sharding.ignored_modules name them.
struct ModuleNamesRecipe {
  std::vector<std::string> names;
  std::string pattern;  // in place of names
};

// Adapters are trained if target_modules is given.
struct LoraRecipe {
  std::optional<std::int64_t> r;
  std::optional<double> alpha;
  std::optional<ModuleNamesRecipe> target_modules;
  std::optional<double> dropout;
  std::optional<bool> use_rslora;
  std::optional<bool> use_dora;
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::optional<std::vector<std::string>> modules_to_save;
};

enum class BaseWeights : std::uint8_t { none, nf4, int8 };

struct ModelRecipe {
  std::string architecture = "gpt2";
  std::optional<std::string> pretrained;  // a folder that transformers or Tessera saved
  LoraRecipe lora;
  std::optional<std::string> adapter;  // PEFT's folder, to continue its training
  std::int64_t seq_len = 256;
  double dropout = 0.0;
  WeightRounding quantize_aware = WeightRounding::none;
  std::optional<BaseWeights> quantize_base;  // of the frozen weights under adapters
  // Without `pretrained`: the whole configuration of the architecture under the names of Hugging
  // Face's config.json, with its defaults. With it: only the values of the folder's config.json
  // that the recipe changes (the dropout rates).
  nlohmann::json config = nlohmann::json::object();
};

// Parameters with their own settings; the pattern matches whole names.
struct ParameterGroupRecipe {
  std::string pattern;
  std::optional<double> lr;
  std::optional<double> weight_decay;
};

using tasks::SentenceEvaluator;
using tasks::SentenceLoss;
using tasks::StateLoss;
using tasks::StatePair;

// An item of the list in data.train, or data.valid. A plain text stands for the file alone.
struct DataSetRecipe {
  std::vector<std::string> files;  // paths and patterns
  tasks::TableFormat format = tasks::TableFormat::automatic;
  std::vector<std::string> columns;  // empty: the first ones
  std::optional<bool> header;
  SentenceLoss loss = SentenceLoss::none;
  SentenceEvaluator evaluator = SentenceEvaluator::none;
  std::optional<double> label_scale;
  std::vector<std::string> labels;
  std::optional<std::int64_t> num_labels;
  std::optional<double> scale;
  std::string where;  // for messages
};

struct DataRecipe {
  std::vector<DataSetRecipe> train;
  std::vector<DataSetRecipe> valid;      // one, or none
  std::optional<std::string> tokenizer;  // absent: the pretrained folder's, else bytes
  std::int64_t batch_size = 8;           // see batch_size_per_rank
  bool split_batches = false;
  bool shuffle = true;
  bool even_batches = false;
  bool drop_last = false;
  tasks::Mix mix = tasks::Mix::by_size;
  bool group_by_length = false;
  bool packing = false;
  bool deal_by_cost = false;
  tasks::LossOn loss_on = tasks::LossOn::answers;
  StepRamp seq_len_ramp;
  RankWeightOptions rank_weights;
};

// Weights are pruned if method is given.
struct PruneRecipe {
  std::optional<PruneMethod> method;
  std::optional<double> sparsity;
  std::optional<std::int64_t> begin, end, every;
  std::optional<std::string> modules;  // a regular expression
  std::optional<std::int64_t> calibration_batches;
};

// train.task: dpo. Absent: the defaults of PreferenceOptions; the reference is the model that the
// run starts with.
struct DpoRecipe {
  std::optional<double> beta;
  std::optional<tasks::PreferenceLoss> loss;
  std::optional<double> label_smoothing;
  std::optional<std::string> reference;  // the folder of a model
};

// train.optimizer: muon. Absent: its defaults (fine_tuning.cpp).
struct MuonRecipe {
  std::optional<double> momentum;
  std::optional<bool> nesterov;
  std::optional<std::int64_t> ns_steps;
  std::optional<optim::MuonRate> adjust_lr;
  std::optional<double> adamw_lr;
  std::optional<DType> products;
};

// train.optimizer: adamw. Absent: the defaults of AdamWOptions.
struct AdamWRecipe {
  std::optional<DType> state_dtype;
};

// train.optimizer: adamw8bit. Absent: the defaults of AdamW8BitOptions.
struct AdamW8BitRecipe {
  std::optional<std::int64_t> min_size;
};

// train.optimizer: adafactor. Absent: the defaults of AdafactorOptions.
struct AdafactorRecipe {
  std::optional<double> beta2_decay, eps1, eps2, clip_threshold;
};

struct TrainRecipe {
  TaskKind task = TaskKind::next_token;
  std::int64_t steps = 1000;
  OptimizerKind optimizer = OptimizerKind::adamw;
  double lr = 3.0e-4;
  optim::ScheduleKind lr_schedule = optim::ScheduleKind::cosine;
  std::int64_t warmup_steps = 0;
  std::optional<std::int64_t> lr_decay_steps;  // absent: steps
  std::optional<std::int64_t> lr_decay_start;  // wsd_*
  std::optional<double> lr_power;              // polynomial
  std::optional<std::int64_t> lr_cycles;       // cosine_with_restarts
  double min_lr = 0.0;
  double weight_decay = 0.01;
  std::optional<std::array<double, 2>> betas;  // absent: those of the optimizer
  double eps = 1.0e-8;
  double momentum = 0.0;
  MuonRecipe muon;
  AdamWRecipe adamw;
  AdamW8BitRecipe adamw8bit;
  AdafactorRecipe adafactor;
  std::vector<ParameterGroupRecipe> parameter_groups;
  double max_grad_norm = 1.0;  // 0: no clipping
  std::int64_t gradient_accumulation_steps = 1;
  StepRamp accumulation_ramp;
  bool sync_each_batch = true;
  std::int64_t eval_every = 0;  // 0: after the last step only
  std::int64_t eval_batches = 16;
  std::int64_t seed = 0;
  DeviceChoice device = DeviceChoice::automatic;
  bool memory_check = true;
  SpikeAction on_spike = SpikeAction::stop;
  std::optional<double> spike_sigma;  // absent: values that are not finite alone
  std::int64_t spike_window = SpikeOptions{}.window;
  std::optional<std::string> teacher;  // the folder of a model
  std::optional<double> distill_temperature;
  std::optional<double> distill_weight;
  std::vector<StatePair> teacher_states;
  PruneRecipe prune;
  DpoRecipe dpo;
};

using tessera::Placement;

struct OffloadRecipe {
  // Absent: `host` with offload_params, else `device`.
  std::optional<Placement> parameters, gradients, optimizer;
  std::optional<std::string> folder;
};

struct ShardingRecipe {
  ShardingStrategy sharding_strategy = ShardingStrategy::full_shard;
  AutoWrapPolicy auto_wrap_policy = AutoWrapPolicy::transformer_based;
  std::vector<std::string> transformer_layer_cls_to_wrap;  // empty: the model's own layer class
  std::int64_t min_num_params = 100'000'000;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = true;
  std::int64_t limit_all_gathers = 2;  // units that are gathered at the same time
  std::optional<ReshardAfterForward> reshard_after_forward;  // absent: the strategy decides
  bool reshard_after_backward = true;
  MixedPrecision mixed_precision = MixedPrecision::no;
  std::optional<DType> reduce_dtype;   // absent: the dtype of mixed_precision
  std::vector<std::string> keep_fp32;  // classes of modules
  std::optional<ModuleNamesRecipe> ignored_modules;
  WireFormat gather_wire = WireFormat::same;
  WireFormat reduce_wire = WireFormat::same;
  std::optional<double> loss_scale;  // fp16; absent: dynamic
  double loss_scale_init = 65536;
  double loss_scale_growth_factor = 2;
  double loss_scale_backoff_factor = 0.5;
  std::int64_t loss_scale_growth_interval = 2000;
  double loss_scale_min = 1;
  std::optional<std::int64_t> group_size;  // absent: the ranks of a node (LOCAL_WORLD_SIZE)
  bool fixed_reduction_order = false;      // over NCCL: sum in the order of the other backends
  comm::HostsBackend backend = comm::HostsBackend::automatic;
  std::optional<std::int64_t> reduction_group;  // absent: group_size for HYBRID_*, else one tree
  bool defer_replica_sums = false;
  std::int64_t context_parallel = 1;
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::none;
  std::vector<std::string> activation_checkpointing_cls;  // empty: the units
  std::int64_t activation_checkpointing_every = 1;
  bool activation_offload = false;
  bool offload_params = false;
  OffloadRecipe offload;
};

struct CheckpointRecipe {
  std::optional<std::string> dir;  // absent: no checkpoints
  std::int64_t every = 1000;       // 0: never, also not at the end
  std::int64_t keep = 0;           // 0: all
  std::int64_t keep_best = 0;      // by validation loss, beside the newest
  checkpoint::StateDictType state_dict_type = checkpoint::StateDictType::full;
  std::string resume = "auto";  // auto, never, or a path
  DType dtype = DType::float32;
  bool async = false;                           // training goes on while the copy is written
  std::uint64_t max_file_size = 5'000'000'000;  // of FULL; 0: one file
  double stall_timeout = 300;                   // seconds; 0: never
  std::optional<std::string> export_folder;     // weights alone, at the end
};

struct LogRecipe {
  std::optional<std::string> jsonl;
  std::optional<std::string> memory;  // planned and measured memory
  std::optional<std::string> summary;
  std::optional<std::string> trace;
  std::optional<std::array<std::int64_t, 2>> trace_steps;  // first and last
  std::optional<std::string> tensorboard;                  // a folder
  std::optional<std::string> csv;
  std::int64_t every = 10;
};

struct Recipe {
  ModelRecipe model;
  DataRecipe data;
  TrainRecipe train;
  ShardingRecipe sharding;
  CheckpointRecipe checkpoint;
  LogRecipe log;

  std::string source = "recipe";  // the file, for messages
  std::map<std::string, std::string>
      given;  // key -> where it was given ("recipe.yaml:12", "--set train.lr=1")
  std::vector<std::string> notes;       // from reading it, one line each
  std::optional<int> configured_ranks;  // from a configuration file
};

// A key that another file sets, such as Accelerate's configuration.
struct OuterSetting {
  std::string recipe_key;  // "sharding.sharding_strategy"
  YamlNode value;
  std::string where;
  std::string said;      // "fsdp_sharding_strategy: 1"
  bool assumed = false;  // a default: the recipe's own key wins
};

struct OuterSettings {
  std::vector<OuterSetting> settings;
  std::optional<int> processes;    // on all nodes
  std::vector<std::string> notes;  // for the user, one line each
};

// Reads a recipe file and applies `--set key=value` texts in their order. Throws
// Error(configuration) with file, line and key for an unknown key, and for a value that does not
// have the key's type and range.
Recipe load_recipe(const std::filesystem::path& path, const std::vector<std::string>& overrides);
// The keys of `outer`, if given, override the recipe's, except the assumed ones. Keys that they
// change are in the recipe's notes.
Recipe parse_recipe(std::string_view text, const std::string& source,
                    const std::vector<std::string>& overrides,
                    const OuterSettings* outer = nullptr);

// The model predicts the next token; otherwise it encodes sentences.
inline bool predicts_tokens(const Recipe& recipe) {
  return recipe.train.task != TaskKind::sentence_pairs;
}
// Steps have different sizes, so that a plan is for the largest.
inline bool batches_vary(const Recipe& recipe) {
  if (!recipe.train.accumulation_ramp.empty() || !recipe.data.seq_len_ramp.empty()) return true;
  switch (recipe.train.task) {
    case TaskKind::next_token:
      return false;
    case TaskKind::sft:
      return !recipe.data.packing;
    case TaskKind::dpo:
    case TaskKind::sentence_pairs:
      return true;
  }
  return true;
}
// True if adapters are trained in place of the model.
bool trains_adapters(const Recipe& recipe);
// The adapters that model.lora describes. Those of model.adapter are in its folder.
nn::LoraOptions lora_options(const Recipe& recipe);

// The recipe's places for a rank's state.
OffloadOptions offload_options(const Recipe& recipe);

// training/recipe/precision.cpp: sharding.mixed_precision and the keys that belong to it.
LossScaleOptions loss_scale_options(const Recipe& recipe);
void set_precision(const Recipe& recipe, ShardingOptions& options);
void validate_precision(const Recipe& recipe);

// training/recipe/compression.cpp: the keys of a teacher and of pruning.
void validate_compression(const Recipe& recipe);

// training/recipe/fine_tuning.cpp: the keys of train.task: dpo.
tasks::PreferenceOptions preference_options(const Recipe& recipe);
// The reference is a model of its own: otherwise it is the trained one without its adapters.
bool has_reference(const Recipe& recipe);
void validate_preferences(const Recipe& recipe);

// Checks that concern several keys, or a key and the number of ranks. Needs no engine and reads no
// file.
void validate(const Recipe& recipe, int world_size);

// data.batch_size counts a rank's samples, or with data.split_batches those of the whole world.
std::int64_t batch_size_per_rank(const Recipe& recipe, int world_size);
// The parts of a micro-batch: ranks that hold sequences together (sharding.context_parallel) have
// one part.
std::int64_t batch_shares(const Recipe& recipe, int world_size);

// Every key with its value, by section: for checkpoints and for `tessera recipe`. parse_recipe
// reads it back.
nlohmann::json to_json(const Recipe& recipe);
// The same as text, with a newline at its end. Bytes of a path that are not UTF-8 are replaced by
// U+FFFD, so that a run with such a path can be saved.
std::string to_text(const Recipe& recipe);

// The place of a key's value, for messages: "recipe.yaml:12", or the file alone for a default.
std::string where(const Recipe& recipe, const std::string& key);

}  // namespace tessera::training
