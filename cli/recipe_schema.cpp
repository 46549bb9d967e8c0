// The table of keys outside of model configurations.
#include "cli/recipe_schema.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "cli/bytes_text.h"
#include "cli/recipe_data_sets.h"
#include "cli/recipe_values.h"
#include "models/registry.h"

namespace tessera::cli {
namespace {

template <class T>
struct Unwrapped {
  using type = T;
  static constexpr bool optional = false;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
  static constexpr bool optional = true;
};

template <class T>
constexpr std::string_view type_name() {
  if constexpr (std::is_same_v<T, bool>) return "true \\| false";
  if constexpr (std::is_same_v<T, std::int64_t>) return "whole number";
  if constexpr (std::is_same_v<T, double>) return "number";
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list of names";
  if constexpr (std::is_same_v<T, std::array<double, 2>>) return "two numbers";
  if constexpr (std::is_same_v<T, std::array<std::int64_t, 2>>) return "two whole numbers";
}

template <class T>
T read_value(const YamlNode& node, const std::string& name, const Range& range) {
  if constexpr (std::is_same_v<T, bool>) {
    return read_bool(node, name);
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    const std::int64_t value = read_integer(node, name);
    check_range(node, name, range, static_cast<double>(value));
    return value;
  } else if constexpr (std::is_same_v<T, double>) {
    const double value = read_number(node, name);
    check_range(node, name, range, value);
    return value;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return read_text(node, name);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return read_texts(node, name);
  } else {
    T values;
    if constexpr (std::is_same_v<T, std::array<double, 2>>) {
      values = read_pair(node, name);
    } else {
      values = read_whole_pair(node, name);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      check_range(node.items[i], name, range, static_cast<double>(values[i]));
    }
    return values;
  }
}

// A key whose value is a member of Recipe; its type follows from the member's.
template <class Access>
RecipeKey key(std::string name, Access access, std::string help, Range range = {}) {
  using Member = std::remove_cvref_t<decltype(access(std::declval<Recipe&>()))>;
  using Value = typename Unwrapped<Member>::type;
  RecipeKey row;
  row.name = name;
  row.type = type_name<Value>();
  row.range = range.text();
  row.help = std::move(help);
  row.free_text = std::is_same_v<Value, std::string>;
  row.optional = Unwrapped<Member>::optional;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    access(recipe) = read_value<Value>(node, name, range);
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json {
    if constexpr (Unwrapped<Member>::optional) {
      if (!access(recipe)) return nullptr;
      return *access(recipe);
    } else {
      return access(recipe);
    }
  };
  return row;
}

// A key whose value is a number of bytes, as "5GB" or 5000000000.
template <class Access>
RecipeKey byte_count(const std::string& name, Access access, std::string help) {
  RecipeKey row;
  row.name = name;
  row.type = "bytes, as 5GB";
  row.help = std::move(help);
  row.free_text = true;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    const std::string text = node.kind == YamlNode::Kind::scalar ? node.text : std::string();
    const auto bytes = text == "0" ? std::optional<std::uint64_t>(0) : parse_bytes(text);
    if (!bytes) refuse_value(node, name, "a number of bytes, as 5GB or 500MiB, or 0");
    access(recipe) = *bytes;
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json { return access(recipe); };
  return row;
}

// A key whose value is one of a few names.
template <class Access, class T>
RecipeKey choice(std::string name, Access access, std::vector<Choice<T>> choices,
                 std::string help) {
  using Member = std::remove_cvref_t<decltype(access(std::declval<Recipe&>()))>;
  RecipeKey row;
  row.name = name;
  for (const Choice<T>& one : choices) {
    if (one.listed && one.available) {
      row.type += (row.type.empty() ? "" : " \\| ") + std::string(one.name);
    }
  }
  row.help = std::move(help);
  row.optional = Unwrapped<Member>::optional;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    access(recipe) = read_choice(node, name, choices);
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json {
    if constexpr (Unwrapped<Member>::optional) {
      if (!access(recipe)) return nullptr;
      return choice_name(choices, *access(recipe));
    } else {
      return choice_name(choices, access(recipe));
    }
  };
  return row;
}

// A key that other programs' files contain and that is true here whatever it says: a recipe that
// says otherwise is told.
RecipeKey always(const std::string& name, const std::string& so) {
  RecipeKey row;
  row.name = name;
  row.type = type_name<bool>();
  row.fallback = "true";
  row.help = fmt::format("Accelerate's key; whatever it says, {}.", so);
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    if (read_bool(node, name)) return;
    recipe.notes.push_back(fmt::format("{}: {}: false changes nothing: {}", node.where, name, so));
  };
  return row;
}

// A key whose value is data sets.
template <class Access>
RecipeKey data_sets(const std::string& name, Access access, std::string help) {
  RecipeKey row;
  row.name = name;
  row.type = "text \\| data sets";
  row.help = std::move(help);
  row.free_text = true;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    access(recipe) = read_data_sets(node, name);
  };
  row.write = [=](const Recipe& recipe) -> nlohmann::json {
    if (access(recipe).empty()) return nullptr;
    return write_data_sets(access(recipe));
  };
  return row;
}

RecipeKey optional_value(RecipeKey row) {
  row.optional = true;
  return row;
}

// A number of things, or `true` for one of them and `false` for none.
template <class Access>
RecipeKey count_or_truth(std::string name, Access access, std::string help) {
  RecipeKey row = key(name, access, std::move(help), at_least(0));
  row.type = "true \\| false \\| whole number";
  const auto read_number = row.read;
  row.read = [=](Recipe& recipe, const YamlNode& node) {
    const std::string word =
        node.kind == YamlNode::Kind::scalar ? lower_case(node.text) : std::string();
    const bool truth = word == "true" || word == "yes" || word == "on" || word == "false" ||
                       word == "no" || word == "off";
    if (!truth) return read_number(recipe, node);
    access(recipe) = read_bool(node, name) ? 1 : 0;
  };
  return row;
}

// A key of the design whose feature does not exist yet.
RecipeKey unavailable(const std::string& name, std::string help) {
  RecipeKey row;
  row.name = name;
  row.type = "-";
  row.fallback = "-";
  row.help = std::move(help) + " Not available in this version: refused.";
  row.free_text = true;
  row.optional = true;
  row.read = [=](Recipe&, const YamlNode& node) { refuse_unavailable(node.where, name); };
  return row;
}

RecipeKey default_is(std::string fallback, RecipeKey row) {
  row.fallback = std::move(fallback);
  return row;
}

RecipeKey also_called(std::vector<std::string> synonyms, RecipeKey row) {
  row.synonyms = std::move(synonyms);
  return row;
}

#define TESSERA_KEY(section, member)                \
#section "." #member, [](auto& recipe) -> auto& { \
    return recipe.section.member;                   \
  }

const std::vector<Choice<DType>> floating_types = {
    {"fp32", DType::float32},  {"float32", DType::float32, true, false},
    {"bf16", DType::bfloat16}, {"bfloat16", DType::bfloat16, true, false},
    {"fp16", DType::float16},  {"float16", DType::float16, true, false},
};

// Of gradients: fp16 would overflow without a loss scaler.
const std::vector<Choice<DType>> wire_types = {
    {"fp32", DType::float32},        {"float32", DType::float32, true, false},
    {"bf16", DType::bfloat16},       {"bfloat16", DType::bfloat16, true, false},
    {"fp16", DType::float16, false}, {"float16", DType::float16, false, false},
};

std::vector<Choice<std::string>> architecture_choices() {
  std::vector<Choice<std::string>> choices;
  for (const models::Architecture& architecture : models::architectures()) {
    choices.push_back({architecture.model_type, std::string(architecture.model_type)});
  }
  return choices;
}

std::vector<RecipeKey> model_keys() {
  return {
      choice(TESSERA_KEY(model, architecture), architecture_choices(),
             "The model's kind. With `pretrained`, the folder's config.json says it."),
      default_is("none", key(TESSERA_KEY(model, pretrained),
                             "A folder that transformers or Tessera saved: its config.json and "
                             "weights.")),
      key(TESSERA_KEY(model, seq_len), "Tokens in a training sequence.", at_least(1)),
      key(TESSERA_KEY(model, dropout),
          "Sets every dropout rate of the model that is not set by its own key.", from_up_to(0, 1)),
  };
}

std::vector<RecipeKey> data_keys() {
  return {
      default_is("required",
                 data_sets(TESSERA_KEY(data, train),
                           "What to train on: a file, a pattern, or a list of files or data sets "
                           "(below), each batch of which is of one.")),
      default_is("none",
                 optional_value(data_sets(TESSERA_KEY(data, valid),
                                          "What to evaluate on: a file, or a data set (below)."))),
      default_is("the folder's with `pretrained`, else bytes",
                 key(TESSERA_KEY(data, tokenizer),
                     "How text becomes tokens: a folder or file of a tokenizer (tokenizer.json, "
                     "vocab.txt, a SentencePiece .model), or `bytes`: each byte is a token, 256 in "
                     "all.")),
      key(TESSERA_KEY(data, batch_size),
          "Samples in a micro-batch of one rank (of the whole world with `split_batches`); a pair "
          "of "
          "sentences is one.",
          at_least(1)),
      key(TESSERA_KEY(data, split_batches),
          "`batch_size` is the world's and is split over the ranks, which must divide it."),
      key(TESSERA_KEY(data, shuffle),
          "Each epoch takes the samples in another random order; otherwise in the file's."),
      key(TESSERA_KEY(data, even_batches),
          "An epoch's last batch is filled up with the epoch's first samples, as Accelerate does "
          "it; otherwise it goes on with the next epoch's."),
      key(TESSERA_KEY(data, drop_last),
          "An epoch's last samples are left out when they are less than a batch of all ranks."),
      choice(TESSERA_KEY(data, mix),
             std::vector<Choice<tasks::Mix>>{{"by_size", tasks::Mix::by_size},
                                             {"round_robin", tasks::Mix::round_robin}},
             "Of several data sets: which one a batch is of, drawn by their sizes or in turn."),
      key(TESSERA_KEY(data, group_by_length),
          "`sentence_pairs`: samples of like length come together (1024 of the order sorted at a "
          "time), so that less is padded."),
  };
}

std::vector<RecipeKey> train_keys() {
  using S = LearningRateSchedule;
  return {
      choice(TESSERA_KEY(train, task),
             std::vector<Choice<TaskKind>>{{"next_token", TaskKind::next_token},
                                           {"sentence_pairs", TaskKind::sentence_pairs}},
             "What is learned: the next token of a text, or embeddings of sentences "
             "(sentence-encoders.md)."),
      key(TESSERA_KEY(train, steps), "Optimizer steps.", at_least(0)),
      choice(TESSERA_KEY(train, optimizer),
             std::vector<Choice<OptimizerKind>>{{"adamw", OptimizerKind::adamw},
                                                {"sgd", OptimizerKind::sgd}},
             "The optimizer."),
      key(TESSERA_KEY(train, lr), "The highest learning rate.", at_least(0)),
      choice(TESSERA_KEY(train, lr_schedule),
             std::vector<Choice<S>>{
                 {"cosine", S::cosine}, {"linear", S::linear}, {"constant", S::constant}},
             "How the learning rate falls from `lr` to `min_lr` after the warm-up."),
      key(TESSERA_KEY(train, warmup_steps),
          "Steps in which the learning rate rises from 0 to `lr`.", at_least(0)),
      default_is("`steps`", key(TESSERA_KEY(train, lr_decay_steps),
                                "The step at which the fall ends.", at_least(1))),
      key(TESSERA_KEY(train, min_lr), "The learning rate at the end of the fall.", at_least(0)),
      key(TESSERA_KEY(train, weight_decay),
          "Decay of matrices (not of biases and norms), decoupled in AdamW.", at_least(0)),
      key(TESSERA_KEY(train, betas), "AdamW's two decay rates.", from_up_to(0, 1)),
      key(TESSERA_KEY(train, eps), "AdamW's epsilon.", above(0)),
      key(TESSERA_KEY(train, momentum), "SGD's momentum.", from_up_to(0, 1)),
      key(TESSERA_KEY(train, max_grad_norm),
          "Gradients are scaled down to this norm over all ranks; 0: never.", at_least(0)),
      key(TESSERA_KEY(train, gradient_accumulation_steps), "Micro-batches in an optimizer step.",
          at_least(1)),
      key(TESSERA_KEY(train, sync_each_batch),
          "Reduce gradients after each micro-batch; otherwise sum locally and reduce once a step, "
          "which takes more memory."),
      key(TESSERA_KEY(train, eval_every),
          "Steps between evaluations on `data.valid`; 0: after the last step only.", at_least(0)),
      key(TESSERA_KEY(train, eval_batches), "Batches of each rank in an evaluation.", at_least(1)),
      key(TESSERA_KEY(train, seed), "Seed of initial weights, dropout and data order.",
          at_least(0)),
      choice(TESSERA_KEY(train, device),
             std::vector<Choice<DeviceChoice>>{{"auto", DeviceChoice::automatic},
                                               {"cpu", DeviceChoice::cpu},
                                               {"cuda", DeviceChoice::cuda}},
             "Where to compute; `auto` takes a GPU where there is one."),
  };
}

std::vector<RecipeKey> strategy_keys() {
  using S = ShardingStrategy;
  using W = AutoWrapPolicy;
  using P = BackwardPrefetch;
  return {
      choice(TESSERA_KEY(sharding, sharding_strategy),
             std::vector<Choice<S>>{{"FULL_SHARD", S::full_shard},
                                    {"SHARD_GRAD_OP", S::shard_grad_op},
                                    {"NO_SHARD", S::no_shard},
                                    {"HYBRID_SHARD", S::hybrid_shard},
                                    {"HYBRID_SHARD_ZERO2", S::hybrid_shard_zero2},
                                    {"SHARD_OPTIMIZER", S::shard_optimizer},
                                    {"1", S::full_shard, true, false},
                                    {"2", S::shard_grad_op, true, false},
                                    {"3", S::no_shard, true, false},
                                    {"4", S::hybrid_shard, true, false},
                                    {"5", S::hybrid_shard_zero2, true, false}},
             "What the ranks split among them. Accelerate's numbers 1 to 5 mean the first five, in "
             "this order."),
      choice(TESSERA_KEY(sharding, auto_wrap_policy),
             std::vector<Choice<W>>{{"TRANSFORMER_BASED_WRAP", W::transformer_based},
                                    {"SIZE_BASED_WRAP", W::size_based},
                                    {"NO_WRAP", W::none}},
             "What makes a unit, the piece of the model that is gathered at once."),
      default_is("the model's layer class",
                 key(TESSERA_KEY(sharding, transformer_layer_cls_to_wrap),
                     "TRANSFORMER_BASED_WRAP's layer classes, as a list or with commas.")),
      key(TESSERA_KEY(sharding, min_num_params), "SIZE_BASED_WRAP's smallest unit, in parameters.",
          at_least(1)),
      also_called({"sharding.backward_prefetch_policy"},
                  choice(TESSERA_KEY(sharding, backward_prefetch),
                         std::vector<Choice<P>>{{"BACKWARD_PRE", P::pre},
                                                {"BACKWARD_POST", P::post},
                                                {"NO_PREFETCH", P::none},
                                                {"1", P::pre, true, false},
                                                {"2", P::post, true, false}},
                         "When the next unit is gathered in the backward pass: before this one's "
                         "gradients are computed, after, or when it is needed.")),
      key(TESSERA_KEY(sharding, forward_prefetch), "Gather the next unit during a unit's forward."),
      always("sharding.limit_all_gathers", "at most two gathers are in flight"),
  };
}

std::vector<RecipeKey> precision_and_group_keys() {
  using M = MixedPrecision;
  return {
      choice(TESSERA_KEY(sharding, mixed_precision),
             std::vector<Choice<M>>{{"no", M::no},
                                    {"bf16", M::bf16},
                                    {"fp16", M::fp16, false},
                                    {"fp32", M::no, true, false},
                                    {"false", M::no, true, false},
                                    {"fp8", M::no, false, false}},
             "The dtype of parameters and activations in compute; master weights stay fp32."),
      default_is(
          "that of compute",
          choice(TESSERA_KEY(sharding, reduce_dtype), wire_types,
                 "The dtype in which gradients travel. Sums are fp32, but NCCL's own (without "
                 "`fixed_reduction_order`), which are in it.")),
      default_is("the ranks of a host",
                 key(TESSERA_KEY(sharding, group_size),
                     "HYBRID_*: ranks that share one copy of the model; must divide the world.",
                     at_least(1))),
      default_is(
          "`group_size` for HYBRID_*, else none",
          key(TESSERA_KEY(sharding, reduction_group),
              "Ranks whose gradients are summed first. Runs with the same value give the same bits "
              "under "
              "every strategy; needed only to compare HYBRID_* whose group is no power of two.",
              at_least(1))),
      key(TESSERA_KEY(sharding, fixed_reduction_order),
          "Ranks over NCCL: sum gradients in the order of the other communicators instead of "
          "NCCL's, "
          "so that every strategy gives the same bits. Elsewhere that is always so."),
      always("sharding.use_orig_params", "parameters always keep their names and shapes"),
      always("sharding.sync_module_states", "ranks always begin with equal weights"),
      always("sharding.cpu_ram_efficient_loading", "a rank always reads only its share"),
      unavailable("sharding.reshard_after_forward", "Reshard to a smaller group after forward."),
      unavailable("sharding.ignored_modules", "Modules to leave unsharded."),
  };
}

std::vector<RecipeKey> recomputation_keys() {
  using A = ActivationCheckpointing;
  return {
      choice(TESSERA_KEY(sharding, activation_checkpointing),
             std::vector<Choice<A>>{{"false", A::none},
                                    {"true", A::full},
                                    {"selective", A::selective},
                                    {"full", A::full, true, false}},
             "Keep a unit's inputs for the backward and compute the rest again there; `selective` "
             "keeps the attention's output as well."),
      default_is("the units",
                 key(TESSERA_KEY(sharding, activation_checkpointing_cls),
                     "Recompute the modules of these classes instead, as a list or with commas.")),
      key(TESSERA_KEY(sharding, activation_checkpointing_every),
          "Recompute every n-th of them, the first one included.", at_least(1)),
      key(TESSERA_KEY(sharding, activation_offload),
          "On a GPU: what recomputation keeps goes to the host's memory until the backward comes "
          "near."),
  };
}

std::vector<RecipeKey> offload_keys() {
  const std::vector<Choice<Placement>> places = {
      {"device", Placement::device}, {"host", Placement::host}, {"file", Placement::file}};
  const auto place = [&](std::string name, auto access, std::string help) {
    return default_is("`device`", choice(std::move(name), access, places, std::move(help)));
  };
  return {
      key(TESSERA_KEY(sharding, offload_params),
          "Accelerate's key: `host` for the three of `offload` that are not given."),
      place(TESSERA_KEY(sharding, offload.parameters),
            "Where a rank's masters lie between their uses: `host` is a GPU's (CPU ranks have "
            "no other than the device), `file` is for CPU ranks."),
      place(TESSERA_KEY(sharding, offload.gradients), "Where its reduced gradients lie."),
      place(TESSERA_KEY(sharding, offload.optimizer), "Where its moments lie."),
      default_is("none", key(TESSERA_KEY(sharding, offload.folder),
                             "A folder on a disk for what is in a `file`; it is made where it is "
                             "missing, and nothing is left there.")),
  };
}

std::vector<RecipeKey> checkpoint_keys() {
  using T = checkpoint::StateDictType;
  return {
      default_is("none",
                 key(TESSERA_KEY(checkpoint, dir),
                     "The folder of the checkpoints; without it none is written or looked for.")),
      key(TESSERA_KEY(checkpoint, every),
          "Steps between checkpoints; one more comes after the last step. 0: never, not at the end "
          "either.",
          at_least(0)),
      key(TESSERA_KEY(checkpoint, keep), "Newest checkpoints of this run to keep; 0: all.",
          at_least(0)),
      count_or_truth(TESSERA_KEY(checkpoint, keep_best),
                     "Checkpoints to keep beside the newest, those with the lowest validation loss "
                     "or the best main number of the evaluator; each checkpoint is evaluated on "
                     "`data.valid` for it."),
      also_called({"sharding.state_dict_type"},
                  choice(TESSERA_KEY(checkpoint, state_dict_type),
                         std::vector<Choice<T>>{{"FULL_STATE_DICT", T::full},
                                                {"SHARDED_STATE_DICT", T::sharded},
                                                {"LOCAL_STATE_DICT", T::full, false, false},
                                                {"1", T::full, true, false},
                                                {"3", T::sharded, true, false}},
                         "One file that transformers reads, or a file a rank.")),
      key(TESSERA_KEY(checkpoint, resume),
          "`auto`: from the newest good checkpoint of the run that saved last in `dir`, else from "
          "the start; `never`; or the path of one. What other runs saved in `dir` stays."),
      choice(TESSERA_KEY(checkpoint, dtype), floating_types,
             "The dtype of the model's weights in the file."),
      key(TESSERA_KEY(checkpoint, async),
          "Training goes on while a checkpoint is written: the step pays for a copy of the rank's "
          "state in memory. One is written at a time, and the next one waits for it."),
      byte_count(TESSERA_KEY(checkpoint, max_file_size),
                 "FULL_STATE_DICT: what is more goes into numbered files with an index, as Hugging "
                 "Face has it; 0: one file."),
      key(TESSERA_KEY(checkpoint, stall_timeout),
          "Seconds. A slow disk ends no save; one of which no call comes back for so long ends the "
          "run, by name. 0: never.",
          at_least(0)),
      default_is("none",
                 key(
                     "checkpoint.export",
                     [](auto& recipe) -> auto& { return recipe.checkpoint.export_folder; },
                     "A folder that gets the weights alone when the last step is done, with "
                     "config.json and the tokenizer of model.pretrained: a Hugging Face "
                     "folder.")),
  };
}

std::vector<RecipeKey> log_keys() {
  return {
      default_is("none", key(TESSERA_KEY(log, jsonl), "A file that gets one JSON object a step.")),
      default_is("none",
                 key(TESSERA_KEY(log, memory),
                     "A file that gets, after the second step, what rank 0 holds by kind of memory "
                     "as planned and as measured, in JSON.")),
      key(TESSERA_KEY(log, every), "Steps between progress lines where there is no terminal.",
          at_least(1)),
      default_is("none",
                 key(TESSERA_KEY(log, csv),
                     "A table with a row a step and one for each number of an evaluation.")),
      default_is("none", key(TESSERA_KEY(log, tensorboard),
                             "A folder that gets an event file with the same numbers.")),
      default_is(
          "none",
          key(TESSERA_KEY(log, summary),
              "A file that gets, at the end, what a step spent its time on, in JSON; its main "
              "numbers are printed.")),
      default_is("none",
                 key(TESSERA_KEY(log, trace),
                     "A file for a trace of some steps, with all ranks, that Perfetto opens; the "
                     "summary is printed as well.")),
      default_is("the fourth to the sixth of the run, or its last ones",
                 key(TESSERA_KEY(log, trace_steps), "The first and the last step that are traced.",
                     at_least(1))),
  };
}

// Every key under sharding is accepted with Accelerate's prefix as well, and so is where it has a
// second name.
void add_prefixed_synonyms(std::vector<RecipeKey>& keys) {
  constexpr std::string_view section = "sharding.";
  for (RecipeKey& row : keys) {
    std::vector<std::string> names = row.synonyms;
    names.push_back(row.name);
    for (const std::string& name : names) {
      if (name.starts_with(section)) {
        row.synonyms.push_back("sharding.fsdp_" + name.substr(section.size()));
      }
    }
  }
}

std::vector<RecipeKey> all_keys() {
  std::vector<RecipeKey> keys;
  for (auto part : {model_keys(), model_config_keys(), data_keys(), train_keys(), strategy_keys(),
                    precision_and_group_keys(), recomputation_keys(), offload_keys(),
                    checkpoint_keys(), log_keys()}) {
    for (RecipeKey& row : part) keys.push_back(std::move(row));
  }
  add_prefixed_synonyms(keys);
  return keys;
}

}  // namespace

const std::vector<RecipeKey>& recipe_keys() {
  static const std::vector<RecipeKey> keys = all_keys();
  return keys;
}

}  // namespace tessera::cli
