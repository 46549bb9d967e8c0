// The table of keys outside of model configurations.
#include "training/recipe/schema.h"

#include "models/registry/registry.h"
#include "training/recipe/fine_tuning.h"
#include "training/recipe/optimizers.h"
#include "training/recipe/reshard_keys.h"
#include "training/recipe/schema_rows.h"

namespace tessera::training {
namespace {

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

std::vector<RecipeKey> data_keys() {
  return {
      default_is("required", data_sets(TESSERA_KEY(data, train),
                                       "The training data: a file, a pattern, or a list of files "
                                       "or data sets (below). Each batch is from one of them.")),
      default_is("none",
                 optional_value(data_sets(TESSERA_KEY(data, valid),
                                          "The validation data: a file, or a data set (below)."))),
      default_is("the folder's with `pretrained`, else bytes",
                 key(TESSERA_KEY(data, tokenizer),
                     "The tokenizer: a folder or file of a tokenizer (tokenizer.json, vocab.txt, a "
                     "SentencePiece .model, tiktoken's, tekken.json, vocab.json), or `bytes`: each "
                     "byte is a token, 256 in total.")),
      key(TESSERA_KEY(data, batch_size),
          "Samples in a micro-batch of one rank (of the whole world with `split_batches`, of the "
          "ranks "
          "together with `sharding.context_parallel`); a pair of sentences is one sample.",
          at_least(1)),
      key(TESSERA_KEY(data, split_batches),
          "`batch_size` counts the samples of the world. The number of ranks must divide it, or "
          "that "
          "of the blocks of `sharding.context_parallel`."),
      default_is("none", rank_weights(TESSERA_KEY(data, rank_weights),
                                      "For ranks of unequal speed: how they divide a micro-batch. "
                                      "A list has a number for each rank, which takes samples in "
                                      "this proportion; `auto`: by the speed that is measured. "
                                      "Otherwise the parts are equal. Samples, loss and gradient "
                                      "of a step stay the same (sharding.md).")),
      key(TESSERA_KEY(data, deal_by_cost),
          "`sft` without packing: a micro-batch is divided such that all ranks compute about as "
          "long, by the lengths of its conversations, instead of equally many samples."),
      key(
          "data.rebalance_every",
          [](auto& recipe) -> auto& { return recipe.data.rank_weights.rebalance_every; },
          "`rank_weights: auto`: steps between two comparisons of the ranks' speeds.", at_least(1)),
      key(
          "data.rank_weights_limit",
          [](auto& recipe) -> auto& { return recipe.data.rank_weights.limit; },
          "`rank_weights: auto`: a rank takes at most so many times the samples of an equal part; "
          "`tessera plan` plans for so many.",
          at_least(1)),
      key(TESSERA_KEY(data, shuffle),
          "Each epoch takes the samples in a new random order; otherwise in the order of the "
          "file."),
      key(TESSERA_KEY(data, even_batches),
          "An epoch's last batch is filled up with the epoch's first samples, as in Accelerate; "
          "otherwise it goes on with the next epoch's."),
      key(TESSERA_KEY(data, drop_last),
          "An epoch's last samples are left out if they are less than a batch of all ranks."),
      choice(
          TESSERA_KEY(data, mix),
          std::vector<Choice<tasks::Mix>>{{"by_size", tasks::Mix::by_size},
                                          {"round_robin", tasks::Mix::round_robin}},
          "With several data sets: each batch takes one of them, drawn by their sizes or in turn."),
      key(TESSERA_KEY(data, group_by_length),
          "`sentence_pairs`: samples of similar length share a batch (1024 of the order are sorted "
          "at a time), so that there is less padding."),
      key(TESSERA_KEY(data, packing),
          "`sft`: several conversations share a row of `model.seq_len` tokens, without attention "
          "from one to another, and positions begin anew in each. Otherwise each has a row, padded "
          "to the longest of its micro-batch. The loss is the same."),
      default_is(
          "none",
          step_ramp(TESSERA_KEY(data, seq_len_ramp),
                    "`next_token`: steps whose rows are shorter, as {1: 128, 500: 256, 900: "
                    "512}: a sequence of `model.seq_len` tokens is cut into rows of so many, "
                    "with positions that begin anew in each. A step has the same tokens.",
                    1)),
      choice(TESSERA_KEY(data, loss_on),
             std::vector<Choice<tasks::LossOn>>{{"answers", tasks::LossOn::answers},
                                                {"all", tasks::LossOn::all}},
             "`sft`: the tokens in the loss: those of the assistant's messages or of the "
             "completion, or all."),
  };
}

std::vector<Choice<optim::ScheduleKind>> schedule_choices() {
  std::vector<Choice<optim::ScheduleKind>> choices;
  for (const optim::ScheduleRow& row : optim::schedule_rows()) {
    choices.push_back({row.name, row.kind});
  }
  return choices;
}

std::vector<Choice<OptimizerKind>> optimizer_choices() {
  std::vector<Choice<OptimizerKind>> choices;
  for (const OptimizerRow& row : optimizer_rows()) choices.push_back({row.name, row.kind});
  return choices;
}

std::vector<RecipeKey> train_keys() {
  return {
      choice(TESSERA_KEY(train, task),
             std::vector<Choice<TaskKind>>{{"next_token", TaskKind::next_token},
                                           {"sft", TaskKind::sft},
                                           {"dpo", TaskKind::dpo},
                                           {"sentence_pairs", TaskKind::sentence_pairs}},
             "The task: the next token of a text, the answers in conversations or the preferred "
             "one of two answers (data.md), or embeddings of sentences (sentence-encoders.md)."),
      key(TESSERA_KEY(train, steps), "Optimizer steps.", at_least(0)),
      choice(
          TESSERA_KEY(train, optimizer), optimizer_choices(),
          "The optimizer. `adamw8bit`: moments of 8 bits. `muon`: hidden matrices by Muon, "
          "embeddings, heads, biases and norms by AdamW. `adafactor`: second moments of rows and "
          "columns. `schedule_free_adamw`: AdamW at a constant rate, of whose weights an average "
          "is evaluated and saved."),
      key(TESSERA_KEY(train, lr), "The highest learning rate.", at_least(0)),
      choice(TESSERA_KEY(train, lr_schedule), schedule_choices(),
             "The curve of the learning rate from `lr` to `min_lr` after the warm-up; `wsd_`: "
             "after a stable phase at `lr`."),
      key(TESSERA_KEY(train, warmup_steps),
          "Steps in which the learning rate rises from 0 to `lr`.", at_least(0)),
      default_is("`steps`",
                 key(TESSERA_KEY(train, lr_decay_steps),
                     "The step at which the learning rate reaches `min_lr`.", at_least(1))),
      default_is("none",
                 key(TESSERA_KEY(train, lr_decay_start),
                     "`wsd_linear`, `wsd_cosine`, `wsd_1_sqrt` need it: the step at which the "
                     "stable phase ends and the decay begins.",
                     at_least(0))),
      default_is("1.0", key(TESSERA_KEY(train, lr_power), "The power of `polynomial`.", above(0))),
      default_is("1", key(TESSERA_KEY(train, lr_cycles),
                          "The cycles of `cosine_with_restarts`; each falls from `lr` to `min_lr`.",
                          at_least(1))),
      key(TESSERA_KEY(train, min_lr), "The last learning rate.", at_least(0)),
      key(TESSERA_KEY(train, weight_decay),
          "Weight decay of matrices (not of biases and norms), decoupled in all but SGD.",
          at_least(0)),
      default_is(
          "[0.9,0.999]; lion: [0.9,0.99]",
          key(TESSERA_KEY(train, betas),
              "AdamW's and Lion's two decay rates, also of AdamW's part of `muon`. Of "
              "`schedule_free_adamw` the first is the part of the average in the weights that "
              "are trained.",
              from_up_to(0, 1))),
      key(TESSERA_KEY(train, eps),
          "The epsilon of AdamW, also of 8 bits, in `schedule_free_adamw` and in `muon`.",
          above(0)),
      key(TESSERA_KEY(train, momentum), "SGD's momentum.", from_up_to(0, 1)),
      default_is("none", parameter_groups_key()),
      key(TESSERA_KEY(train, max_grad_norm),
          "Gradients are scaled down to this norm over all ranks; 0: no clipping.", at_least(0)),
      key(TESSERA_KEY(train, gradient_accumulation_steps), "Micro-batches in an optimizer step.",
          at_least(1)),
      default_is("none",
                 step_ramp(TESSERA_KEY(train, accumulation_ramp),
                           "Later steps with another number of micro-batches, as {500: 2, 2000: "
                           "4}: step 500 is the first with 2. So a batch grows during the run.",
                           2)),
      key(TESSERA_KEY(train, sync_each_batch),
          "Reduce gradients after each micro-batch; otherwise sum locally and reduce once per "
          "step, which takes more memory."),
      key(TESSERA_KEY(train, eval_every),
          "Steps between evaluations on `data.valid`; 0: after the last step only.", at_least(0)),
      key(TESSERA_KEY(train, eval_batches), "Batches of each rank in an evaluation.", at_least(1)),
      key(TESSERA_KEY(train, seed), "Seed of initial weights, dropout and data order.",
          at_least(0)),
      choice(TESSERA_KEY(train, device),
             std::vector<Choice<DeviceChoice>>{{"auto", DeviceChoice::automatic},
                                               {"cpu", DeviceChoice::cpu},
                                               {"cuda", DeviceChoice::cuda}},
             "The device; `auto`: a GPU if every rank of the node has one, else the CPU."),
      key(TESSERA_KEY(train, memory_check),
          "Refuse a run whose plan (`tessera plan`) needs more memory than its nodes have free, "
          "with exit code 6, before it starts; `false`: start it anyway."),
      choice(TESSERA_KEY(train, on_spike),
             std::vector<Choice<SpikeAction>>{{"stop", SpikeAction::stop},
                                              {"skip", SpikeAction::skip},
                                              {"rollback", SpikeAction::rollback}},
             "After a loss or gradient norm that is not finite, and after a loss above the limit "
             "of `spike_sigma`: end the run; leave out the step; or go back to the newest "
             "checkpoint and leave out the data since then."),
      default_is("none",
                 key(TESSERA_KEY(train, spike_sigma),
                     "The limit of a step's loss: so many standard deviations above the mean of "
                     "the last `spike_window` steps.",
                     above(0))),
      key(TESSERA_KEY(train, spike_window),
          "Steps whose losses decide the limit of `spike_sigma`; before there are so many, there "
          "is none.",
          Range{2, static_cast<double>(SpikeOptions::longest_window), false, false}),
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
             "The state that is sharded over the ranks. Accelerate's numbers 1 to 5 mean the first "
             "five, in this order."),
      choice(TESSERA_KEY(sharding, auto_wrap_policy),
             std::vector<Choice<W>>{{"TRANSFORMER_BASED_WRAP", W::transformer_based},
                                    {"SIZE_BASED_WRAP", W::size_based},
                                    {"NO_WRAP", W::none}},
             "How the model is divided into units; the modules of a unit are gathered together."),
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
                         "The time when the backward gathers the next unit: before this unit's "
                         "gradients are computed, after, or when it is needed.")),
      key(TESSERA_KEY(sharding, forward_prefetch), "Gather the next unit during a unit's forward."),
      bound_on_gathers(TESSERA_KEY(sharding, limit_all_gathers),
                       "Units that are gathered at the same time, including the one at work: the "
                       "others are prefetched. `true` is 2, and so is Accelerate's `false`."),
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
      default_is("that of compute", choice(TESSERA_KEY(sharding, reduce_dtype), floating_types,
                                           "The dtype in which the backward writes gradients and "
                                           "ranks send them. Sums are fp32.")),
      also_called(
          {"sharding.module_classes_to_ignore"},
          default_is(
              "none",
              key(TESSERA_KEY(sharding, keep_fp32),
                  "Classes of modules that compute in fp32 under bf16 or fp16, for example "
                  "LayerNorm; a list, or with commas. FSDP's `_module_classes_to_ignore`."))),
      choice(TESSERA_KEY(sharding, gather_wire),
             std::vector<Choice<WireFormat>>{{"same", WireFormat::same},
                                             {"bf16", WireFormat::bf16},
                                             {"int8", WireFormat::int8},
                                             {"fp8_e4m3", WireFormat::fp8_e4m3},
                                             {"fp8_e5m2", WireFormat::fp8_e5m2}},
             "The format in which parameters are gathered, if it is narrower than the dtype of "
             "compute: they are rounded to it. int8 and fp8 have blocks of 32 values with one "
             "scale each."),
      choice(TESSERA_KEY(sharding, reduce_wire),
             std::vector<Choice<WireFormat>>{{"same", WireFormat::same},
                                             {"bf16", WireFormat::bf16},
                                             {"int8", WireFormat::int8},
                                             {"fp8_e4m3", WireFormat::same, false, false},
                                             {"fp8_e5m2", WireFormat::same, false, false}},
             "The format in which ranks send gradients, if it is narrower than `reduce_dtype`: "
             "each rank's gradients are rounded to it; sums are fp32."),
      default_is("the ranks of a node",
                 key(TESSERA_KEY(sharding, group_size),
                     "HYBRID_*: ranks that share one copy of the model; must divide the world.",
                     at_least(1))),
      default_is("`group_size` for HYBRID_*, else none",
                 key(TESSERA_KEY(sharding, reduction_group),
                     "Ranks whose gradients are summed first. Runs with the same value give the "
                     "same bits under every strategy; needed only to compare HYBRID_* if its group "
                     "is not a power of two.",
                     at_least(1))),
      key(TESSERA_KEY(sharding, defer_replica_sums),
          "HYBRID_* with `train.gradient_accumulation_steps`: gradients are summed between groups "
          "once a step instead of after each micro-batch, which takes memory for one more "
          "gradient shard."),
      key(TESSERA_KEY(sharding, context_parallel),
          "So many consecutive ranks hold each sequence together, each a part of its positions, so "
          "that sequences can be so many times as long; must divide the world and "
          "`model.seq_len`, and with `data.packing` the heads. `data.batch_size` is that of all of "
          "them.",
          at_least(1)),
      key(TESSERA_KEY(sharding, fixed_reduction_order),
          "Ranks over NCCL: sum fp32 gradients in the order of the other communicators instead of "
          "NCCL's, so that every strategy gives the same bits. Without NCCL, and for 16-bit "
          "gradients, this is always so."),
      choice(TESSERA_KEY(sharding, backend),
             std::vector<Choice<comm::HostsBackend>>{{"auto", comm::HostsBackend::automatic},
                                                     {"shm+tcp", comm::HostsBackend::tcp},
                                                     {"shm+mpi", comm::HostsBackend::mpi}},
             "Ranks on CPUs of several nodes: the transport between nodes. `auto`: the value of "
             "the environment variable TESSERA_BACKEND, else `shm+tcp`; `shm+mpi` requires ranks "
             "that mpirun or srun started (several-hosts.md). On one node it is always `shm`."),
      always("sharding.use_orig_params", "parameters always keep their names and shapes"),
      always("sharding.sync_module_states", "ranks always begin with equal weights"),
      always("sharding.cpu_ram_efficient_loading", "a rank always reads only its shard"),
      reshard_after_forward_key(),
      key(TESSERA_KEY(sharding, reshard_after_backward),
          "`false`: units that stay gathered after the forward stay so until the optimizer changes "
          "them, so that the micro-batches of a step gather nothing again; same memory."),
      ignored_modules_key(),
      without_object("sharding.buffer_dtype",
                     "FSDP's dtype of the tensors that modules register beside parameters",
                     "a buffer keeps its own dtype, and the models of a recipe have none; rotary "
                     "tables stay fp32"),
  };
}

std::vector<RecipeKey> loss_scale_keys() {
  return {
      number_or_word(TESSERA_KEY(sharding, loss_scale), "dynamic",
                     "fp16: the factor of the loss before the backward, so that small gradients do "
                     "not underflow; a power of two. If gradients overflow on any rank, all ranks "
                     "skip the step. `dynamic` then lowers the factor, and raises it later."),
      key(TESSERA_KEY(sharding, loss_scale_init), "The first factor, a power of two."),
      key(TESSERA_KEY(sharding, loss_scale_growth_factor),
          "The factor by which it grows, a power of two above 1."),
      key(TESSERA_KEY(sharding, loss_scale_backoff_factor),
          "The factor by which a skipped step reduces it, a power of two below 1."),
      key(TESSERA_KEY(sharding, loss_scale_growth_interval), "Good steps in a row before it grows.",
          at_least(1)),
      key(TESSERA_KEY(sharding, loss_scale_min),
          "The run ends if the factor would fall below this: if the loss itself is not finite, "
          "scaling cannot help."),
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
          "On a GPU: the inputs that recomputation keeps are in the host's memory until shortly "
          "before the backward needs them."),
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
          "Accelerate's key: `host` for those of the three keys of `offload` that are not given."),
      place(TESSERA_KEY(sharding, offload.parameters),
            "The place of a rank's master shards between their uses: `host` is for GPUs (for CPU "
            "ranks it is the device), `file` is for CPU ranks."),
      place(TESSERA_KEY(sharding, offload.gradients), "The place of its reduced gradients."),
      place(TESSERA_KEY(sharding, offload.optimizer), "The place of its moments."),
      default_is("none", key(TESSERA_KEY(sharding, offload.folder),
                             "A folder on a disk for the state in a `file`; it is created if it is "
                             "missing, and left empty at the end.")),
  };
}

std::vector<RecipeKey> checkpoint_keys() {
  using T = checkpoint::StateDictType;
  return {
      default_is("none", key(TESSERA_KEY(checkpoint, dir),
                             "The folder of the checkpoints; without it the run writes and reads "
                             "no checkpoints.")),
      key(TESSERA_KEY(checkpoint, every),
          "Steps between checkpoints; one more is written after the last step. 0: never, also not "
          "at the end.",
          at_least(0)),
      key(TESSERA_KEY(checkpoint, keep), "Newest checkpoints of this run to keep; 0: all.",
          at_least(0)),
      count_or_truth(TESSERA_KEY(checkpoint, keep_best),
                     "Checkpoints to keep beside the newest: those with the lowest validation loss "
                     "or the best main number of the evaluator. For this, each checkpoint is "
                     "evaluated on `data.valid`."),
      also_called({"sharding.state_dict_type"},
                  choice(TESSERA_KEY(checkpoint, state_dict_type),
                         std::vector<Choice<T>>{{"FULL_STATE_DICT", T::full},
                                                {"SHARDED_STATE_DICT", T::sharded},
                                                {"LOCAL_STATE_DICT", T::full, false, false},
                                                {"1", T::full, true, false},
                                                {"3", T::sharded, true, false}},
                         "One file that transformers reads, or one file per rank.")),
      checked(
          check_resume,
          key(TESSERA_KEY(checkpoint, resume),
              "`auto`: from the newest good checkpoint of the run that saved last in `dir`, else "
              "from the start; `never`; or the path of a checkpoint. Checkpoints of other runs in "
              "`dir` "
              "stay.")),
      choice(TESSERA_KEY(checkpoint, dtype), floating_types,
             "The dtype of the model's weights in the file."),
      key(TESSERA_KEY(checkpoint, async),
          "Training goes on while a checkpoint is written: the step only copies the rank's state "
          "in memory. One checkpoint is written at a time, and the next one waits for it."),
      byte_count(TESSERA_KEY(checkpoint, max_file_size),
                 "FULL_STATE_DICT: larger weights are split into numbered files with an index, as "
                 "Hugging Face does; 0: one file."),
      key(TESSERA_KEY(checkpoint, stall_timeout),
          "Seconds. The run ends, with a message, if a call to the file system does not return for "
          "so long. A slow disk that makes progress is fine. 0: never.",
          at_least(0)),
      default_is("none", key(
                             "checkpoint.export",
                             [](auto& recipe) -> auto& { return recipe.checkpoint.export_folder; },
                             "A folder for the weights alone after the last step, with config.json "
                             "and the tokenizer of model.pretrained: a Hugging Face folder.")),
  };
}

std::vector<RecipeKey> log_keys() {
  return {
      default_is("none", key(TESSERA_KEY(log, jsonl), "A file with one JSON object per step.")),
      default_is("none", key(TESSERA_KEY(log, memory),
                             "A JSON file, written after the second step: rank 0's memory by kind, "
                             "as planned and as measured.")),
      key(TESSERA_KEY(log, every), "Steps between progress lines if the output is not a terminal.",
          at_least(1)),
      default_is("none",
                 key(TESSERA_KEY(log, csv),
                     "A table with one row per step and one for each number of an evaluation.")),
      default_is("none", key(TESSERA_KEY(log, tensorboard),
                             "A folder for an event file with the same numbers.")),
      default_is("none", key(TESSERA_KEY(log, summary),
                             "A JSON file, written at the end: how a step spends its time; its "
                             "main numbers are printed.")),
      default_is("none",
                 key(TESSERA_KEY(log, trace),
                     "A file for a trace of some steps, with all ranks, that Perfetto opens; the "
                     "summary is printed as well.")),
      default_is("the fourth to the sixth of the run, or its last ones",
                 key(TESSERA_KEY(log, trace_steps), "The first and the last step that are traced.",
                     at_least(1))),
  };
}

// Every key under sharding is also accepted with Accelerate's prefix, and so is its second name if
// it has one.
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
  for (auto part : {model_keys(), model_config_keys(), data_keys(), train_keys(), preference_keys(),
                    optimizer_keys(), muon_keys(), compression_keys(), strategy_keys(),
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

}  // namespace tessera::training
