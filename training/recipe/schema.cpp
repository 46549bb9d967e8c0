// The table of keys outside of model configurations.
#include "training/recipe/schema.h"

#include "models/registry/registry.h"
#include "training/recipe/fine_tuning.h"
#include "training/recipe/reshard_keys.h"
#include "training/recipe/schema_rows.h"

namespace tessera::cli {
namespace {

#define TESSERA_KEY(section, member)                \
#section "." #member, [](auto& recipe) -> auto& { \
    return recipe.section.member;                   \
  }

const std::vector<Choice<DType>> floating_types = {
    {"fp32", DType::float32},  {"float32", DType::float32, true, false},
    {"bf16", DType::bfloat16}, {"bfloat16", DType::bfloat16, true, false},
    {"fp16", DType::float16},  {"float16", DType::float16, true, false},
};

// Words that are meant as a choice would be taken as paths.
void check_resume(const YamlNode& node, const std::string& key) {
  const std::string word =
      node.kind == YamlNode::Kind::scalar ? lower_case(node.text) : std::string();
  if (is_truth(node) || word == "always" || word == "latest" || word == "last" || word == "none") {
    refuse_value(node, key, "auto, never or the path of a checkpoint");
  }
}

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
                             "weights. Of a folder of steps the newest one that is whole. Nothing "
                             "is downloaded.")),
      key(TESSERA_KEY(model, seq_len), "Tokens in a training sequence.", at_least(1)),
      key(TESSERA_KEY(model, dropout),
          "Sets every dropout rate of the model that is not set by its own key.", from_up_to(0, 1)),
      default_is("none", target_modules_key()),
      default_is("8", key(TESSERA_KEY(model, lora.r), "The rank of the adapters.",
                          Range{1, nn::max_lora_rank, false, false})),
      default_is("16", key(TESSERA_KEY(model, lora.alpha),
                           "What an adapter adds is multiplied by `alpha / r`.", above(0))),
      default_is("0", key(TESSERA_KEY(model, lora.dropout),
                          "The dropout rate of what goes into the adapters.", from_up_to(0, 1))),
      default_is("false", key(TESSERA_KEY(model, lora.use_rslora),
                              "Multiply by `alpha / sqrt(r)` instead.")),
      default_is("none",
                 key(TESSERA_KEY(model, adapter),
                     "A folder of an adapter, PEFT's or a step of a run with `model.lora`: its "
                     "adapters are trained on, over the base in `pretrained`.")),
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
      default_is("none", parameter_groups_key()),
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
      key(TESSERA_KEY(train, memory_check),
          "Refuse a run whose plan (`tessera plan`) needs more memory than its hosts have free, "
          "with exit code 6, before it starts; `false`: start it anyway."),
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
      bound_on_gathers(TESSERA_KEY(sharding, limit_all_gathers),
                       "Units that are whole at a time, the one at work included: the others are "
                       "gathered ahead. `true`, and Accelerate's `false` too, is 2."),
  };
}

std::vector<RecipeKey> precision_and_group_keys() {
  using M = MixedPrecision;
  return {
      choice(TESSERA_KEY(sharding, mixed_precision),
             std::vector<Choice<M>>{{"no", M::no},
                                    {"bf16", M::bf16},
                                    {"fp16", M::fp16},
                                    {"fp32", M::no, true, false},
                                    {"false", M::no, true, false},
                                    {"fp8", M::no, false, false}},
             "The dtype of parameters and activations in compute; master weights stay fp32."),
      default_is(
          "that of compute",
          choice(TESSERA_KEY(sharding, reduce_dtype), floating_types,
                 "The dtype in which backward writes gradients, and in which they travel. Sums are "
                 "fp32.")),
      also_called({"sharding.module_classes_to_ignore"},
                  default_is("none", key(TESSERA_KEY(sharding, keep_fp32),
                                         "Classes of modules that compute in fp32 beside bf16 or "
                                         "fp16, as LayerNorm, as a list or with commas. FSDP calls "
                                         "it `_module_classes_to_ignore`."))),
      choice(TESSERA_KEY(sharding, gather_wire),
             std::vector<Choice<WireFormat>>{{"same", WireFormat::same},
                                             {"bf16", WireFormat::bf16},
                                             {"int8", WireFormat::int8},
                                             {"fp8_e4m3", WireFormat::fp8_e4m3},
                                             {"fp8_e5m2", WireFormat::fp8_e5m2}},
             "What parameters are gathered as, where that is narrower than the dtype of compute: "
             "they are rounded to it. int8 and fp8 in blocks of 32 with a scale each."),
      choice(TESSERA_KEY(sharding, reduce_wire),
             std::vector<Choice<WireFormat>>{{"same", WireFormat::same},
                                             {"bf16", WireFormat::bf16},
                                             {"int8", WireFormat::int8},
                                             {"fp8_e4m3", WireFormat::same, false, false},
                                             {"fp8_e5m2", WireFormat::same, false, false}},
             "What gradients travel as, where that is narrower than `reduce_dtype`: each rank's "
             "are rounded to it; sums are fp32."),
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
          "Ranks over NCCL: sum fp32 gradients in the order of the other communicators instead of "
          "NCCL's, so that every strategy gives the same bits. Elsewhere, and for 16-bit ones, "
          "that "
          "is always so."),
      choice(TESSERA_KEY(sharding, backend),
             std::vector<Choice<comm::HostsBackend>>{{"auto", comm::HostsBackend::automatic},
                                                     {"shm+tcp", comm::HostsBackend::tcp},
                                                     {"shm+mpi", comm::HostsBackend::mpi}},
             "Ranks on CPUs of several hosts: what carries data between hosts. `auto`: what the "
             "environment variable TESSERA_BACKEND says, else `shm+tcp`; `shm+mpi` wants ranks "
             "that mpirun or srun started (several-hosts.md). On one host it is `shm` in any "
             "case."),
      always("sharding.use_orig_params", "parameters always keep their names and shapes"),
      always("sharding.sync_module_states", "ranks always begin with equal weights"),
      always("sharding.cpu_ram_efficient_loading", "a rank always reads only its share"),
      reshard_after_forward_key(),
      key(TESSERA_KEY(sharding, reshard_after_backward),
          "`false`: what stays after the forward stays until the optimizer changes it, so that "
          "nothing is gathered anew between the micro-batches of a step; same memory."),
      ignored_modules_key(),
      without_object("sharding.buffer_dtype",
                     "FSDP's dtype of the tensors that modules register beside parameters",
                     "modules here register parameters alone; rotary tables stay fp32"),
  };
}

std::vector<RecipeKey> loss_scale_keys() {
  return {
      number_or_word(TESSERA_KEY(sharding, loss_scale), "dynamic",
                     "fp16: what the loss is multiplied by before the backward, so that small "
                     "gradients survive; a power of two. A step whose gradients overflow on any "
                     "rank is skipped by all. `dynamic` then goes down, and up again."),
      key(TESSERA_KEY(sharding, loss_scale_init), "The first one, a power of two."),
      key(TESSERA_KEY(sharding, loss_scale_growth_factor),
          "By what it grows, a power of two above 1."),
      key(TESSERA_KEY(sharding, loss_scale_backoff_factor),
          "By what a skipped step reduces it, a power of two below 1."),
      key(TESSERA_KEY(sharding, loss_scale_growth_interval), "Good steps in a row before it grows.",
          at_least(1)),
      key(TESSERA_KEY(sharding, loss_scale_min),
          "One that would fall below this ends the run: no scale helps a loss that is not finite."),
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
      checked(check_resume, key(TESSERA_KEY(checkpoint, resume),
          "`auto`: from the newest good checkpoint of the run that saved last in `dir`, else from "
          "the start; `never`; or the path of one. What other runs saved in `dir` stays.")),
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
                    precision_and_group_keys(), loss_scale_keys(), recomputation_keys(),
                    offload_keys(), checkpoint_keys(), log_keys()}) {
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
