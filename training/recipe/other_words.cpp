// The words of Transformers' TrainingArguments, TRL, axolotl, Accelerate, DeepSpeed, Lightning,
// FSDP, torchtitan and nanoGPT.
#include "training/recipe/other_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/text/nearest.h"

namespace tessera::training {
namespace {

constexpr std::string_view in_steps = "runs are counted in optimizer steps, not in epochs";
constexpr std::string_view per_rank = "samples in a micro-batch of one rank";
constexpr std::string_view precision = "bf16, fp16 or no";
constexpr std::string_view zero_stages =
    "ZeRO's stage 1 is SHARD_OPTIMIZER, 2 is SHARD_GRAD_OP, 3 is FULL_SHARD";

constexpr std::string_view of_answers = "answers, of assistants and completions, or all";
constexpr std::string_view local_folder = "a folder; nothing is downloaded";
constexpr std::string_view local_files = "a file, several or a folder; nothing is downloaded";
constexpr std::string_view base_formats = "nf4 or int8, for the frozen weights under adapters";
constexpr std::string_view pairs_only =
    "where dpo trains on pairs of answers; there is no KTO or GRPO";

constexpr std::string_view wsd_decays =
    "wsd_linear, wsd_cosine and wsd_1_sqrt are its decays, and train.lr_decay_start is where they "
    "begin";

constexpr std::string_view strategy_key = "sharding.sharding_strategy";
constexpr std::string_view precision_key = "sharding.mixed_precision";

constexpr auto words = std::to_array<OtherWord>({
    // Length of a run, and size of a step.
    {"key", "learning_rate", "train.lr"},
    {"key", "max_lr", "train.lr"},
    {"key", "base_lr", "train.lr"},
    {"key", "epochs", "train.steps", in_steps},
    {"key", "num_epochs", "train.steps", in_steps},
    {"key", "num_train_epochs", "train.steps", in_steps},
    {"key", "max_epochs", "train.steps", in_steps},
    {"key", "max_steps", "train.steps"},
    {"key", "max_iters", "train.steps"},
    {"key", "num_steps", "train.steps"},
    {"key", "train_steps", "train.steps"},
    {"key", "num_train_steps", "train.steps"},
    {"key", "max_train_steps", "train.steps"},
    {"key", "total_steps", "train.steps"},
    {"key", "batch_size_per_device", "data.batch_size", per_rank},
    {"key", "per_device_train_batch_size", "data.batch_size", per_rank},
    {"key", "per_gpu_train_batch_size", "data.batch_size", per_rank},
    {"key", "train_micro_batch_size_per_gpu", "data.batch_size", per_rank},
    {"key", "micro_batch_size", "data.batch_size", per_rank},
    {"key", "local_batch_size", "data.batch_size", per_rank},
    {"key", "train_batch_size", "data.batch_size",
     "with data.split_batches: true it counts the samples of all ranks"},
    {"key", "global_batch_size", "data.batch_size",
     "with data.split_batches: true it counts the samples of all ranks"},
    {"key", "per_device_eval_batch_size", "train.eval_batches",
     "an evaluation's batches are as large as those of the training"},
    {"key", "grad_accum_steps", "train.gradient_accumulation_steps"},
    {"key", "accumulate_grad_batches", "train.gradient_accumulation_steps"},
    {"key", "accumulation_steps", "train.gradient_accumulation_steps"},
    {"key", "rampup_batch_size", "train.accumulation_ramp"},
    {"key", "curriculum_learning", "data.seq_len_ramp"},
    {"key", "sample_packing", "data.packing"},
    {"key", "assistant_only_loss", "data.loss_on", of_answers},
    {"key", "completion_only_loss", "data.loss_on", of_answers},
    {"key", "train_on_inputs", "data.loss_on", of_answers},
    {"key", "eval_sample_packing", "data.packing", "of data.train and data.valid alike"},
    {"key", "completions_only_loss", "data.loss_on", of_answers},
    {"key", "roles_to_train", "data.loss_on", of_answers},
    {"key", "response_template", "data.loss_on",
     "answers are found by the chat template, and not by a text"},
    {"key", "beta", "train.dpo.beta"},
    {"key", "loss_type", "train.dpo.loss"},
    {"key", "ref_model", "train.dpo.reference"},
    {"key", "ref_model_path", "train.dpo.reference"},
    {"key", "seq_length", "model.seq_len"},
    {"key", "sequence_len", "model.seq_len"},
    {"key", "max_length", "model.seq_len"},
    {"key", "max_prompt_length", "model.seq_len", "of a prompt and its answer together"},
    {"key", "pad_to_sequence_len", "",
     "rows are as long as the longest of their micro-batch, or, "
     "with data.packing, as model.seq_len"},
    {"key", "sequence_length", "model.seq_len"},
    {"key", "max_seq_length", "model.seq_len"},
    {"key", "max_seq_len", "model.seq_len"},
    {"key", "block_size", "model.seq_len"},
    // The optimizer.
    {"key", "optim", "train.optimizer"},
    {"key", "optimizer_type", "train.optimizer"},
    {"key", "adam_beta1", "train.betas", "a list of both"},
    {"key", "adam_beta2", "train.betas", "a list of both"},
    {"key", "beta1", "train.betas", "a list of both"},
    {"key", "beta2", "train.betas", "a list of both"},
    {"key", "adam_epsilon", "train.eps"},
    {"key", "epsilon", "train.eps"},
    {"key", "lr_scheduler", "train.lr_schedule"},
    {"key", "lr_scheduler_type", "train.lr_schedule"},
    {"key", "scheduler", "train.lr_schedule"},
    {"key", "warmup_ratio", "train.warmup_steps", "a number of steps"},
    {"key", "warmup_iters", "train.warmup_steps"},
    {"key", "num_warmup_steps", "train.warmup_steps"},
    {"key", "lr_decay_iters", "train.lr_decay_steps"},
    {"key", "gradient_clipping", "train.max_grad_norm"},
    {"key", "gradient_clip_val", "train.max_grad_norm"},
    {"key", "grad_clip", "train.max_grad_norm"},
    {"key", "clip_grad_norm", "train.max_grad_norm"},
    {"key", "max_norm", "train.max_grad_norm"},
    // Evaluation, checkpoints, logs.
    {"key", "eval_steps", "train.eval_every"},
    {"key", "eval_interval", "train.eval_every"},
    {"key", "val_check_interval", "train.eval_every"},
    {"key", "evaluation_strategy", "train.eval_every", "a number of steps"},
    {"key", "eval_strategy", "train.eval_every", "a number of steps"},
    {"key", "eval_iters", "train.eval_batches"},
    {"key", "limit_val_batches", "train.eval_batches"},
    {"key", "output_dir", "checkpoint.dir"},
    {"key", "out_dir", "checkpoint.dir"},
    {"key", "save_dir", "checkpoint.dir"},
    {"key", "checkpoint_dir", "checkpoint.dir"},
    {"key", "default_root_dir", "checkpoint.dir"},
    {"key", "save_steps", "checkpoint.every"},
    {"key", "save_every", "checkpoint.every"},
    {"key", "save_interval", "checkpoint.every"},
    {"key", "save_strategy", "checkpoint.every", "a number of steps"},
    {"key", "save_total_limit", "checkpoint.keep"},
    {"key", "keep_latest_k", "checkpoint.keep"},
    {"key", "keep_last", "checkpoint.keep"},
    {"key", "keep_last_n", "checkpoint.keep"},
    {"key", "max_to_keep", "checkpoint.keep"},
    {"key", "save_top_k", "checkpoint.keep_best"},
    {"key", "load_best_model_at_end", "checkpoint.keep_best"},
    {"key", "resume_from_checkpoint", "checkpoint.resume"},
    {"key", "ckpt_path", "checkpoint.resume"},
    {"key", "init_from", "checkpoint.resume"},
    {"key", "logging_steps", "log.every"},
    {"key", "log_every_n_steps", "log.every"},
    {"key", "log_interval", "log.every"},
    {"key", "log_freq", "log.every"},
    {"key", "logging_dir", "log.tensorboard"},
    {"key", "tensorboard_dir", "log.tensorboard"},
    {"key", "report_to", "log.tensorboard", "log.jsonl and log.csv are files without a service"},
    {"key", "wandb", "",
     "nothing is sent to a service; log.jsonl, log.csv and log.tensorboard "
     "write files"},
    // Data and model.
    {"key", "dataset", "data.train"},
    {"key", "dataset_name", "data.train", local_files},
    {"key", "dataset_path", "data.train", local_files},
    {"key", "dataset_text_field", "data.train",
     "a data set's column is named as in {file: rows.jsonl, columns: text}"},
    {"key", "eval_dataset", "data.valid", local_files},
    {"key", "test_datasets", "data.valid", local_files},
    {"key", "val_set_size", "data.valid", "a file of its own"},
    {"key", "shuffle_merged_datasets", "data.shuffle"},
    {"key", "dataset_num_proc", "",
     "data is encoded once and kept; tessera tokenize --workers N uses several threads"},
    {"key", "dataset_processes", "",
     "data is encoded once and kept; tessera tokenize --workers N uses several threads"},
    {"key", "dataset_prepared_path", "", "encoded data is kept beside the data files"},
    {"key", "chat_template", "data.tokenizer",
     "the template is in that folder, as chat_template.jinja or in tokenizer_config.json"},
    {"key", "special_tokens", "data.tokenizer", "that folder's files name them"},
    {"key", "eos_token", "data.tokenizer", "that folder's files name it"},
    {"key", "pad_token", "data.tokenizer", "that folder's files name it"},
    {"key", "train_file", "data.train"},
    {"key", "train_data", "data.train"},
    {"key", "training_data", "data.train"},
    {"key", "validation_file", "data.valid"},
    {"key", "valid_file", "data.valid"},
    {"key", "eval_file", "data.valid"},
    {"key", "validation", "data.valid"},
    {"key", "dataloader_drop_last", "data.drop_last"},
    {"key", "tokenizer_name", "data.tokenizer"},
    {"key", "tokenizer_path", "data.tokenizer"},
    {"key", "model_name", "model.pretrained", local_folder},
    {"key", "model_name_or_path", "model.pretrained", local_folder},
    {"key", "pretrained_model_name_or_path", "model.pretrained", local_folder},
    {"key", "base_model", "model.pretrained", local_folder},
    {"key", "teacher_model_name_or_path", "train.teacher", local_folder},
    {"key", "teacher_model", "train.teacher", local_folder},
    {"key", "temperature", "train.distill_temperature"},
    {"key", "lmbda", "",
     "a teacher's texts are not sampled during training; train.teacher compares "
     "its logits on data.train"},
    {"key", "rl", "train.task", pairs_only},
    {"key", "dpo_beta", "train.dpo.beta"},
    {"key", "neftune_noise_alpha", "", "there is no noise on embeddings"},
    {"key", "attn_implementation", "",
     "attention is always computed in tiles (docs/architecture.md)"},
    {"key", "flash_attention", "", "attention is always computed in tiles (docs/architecture.md)"},
    {"key", "xformers_attention", "",
     "attention is always computed in tiles (docs/architecture.md)"},
    {"key", "sdp_attention", "", "attention is always computed in tiles (docs/architecture.md)"},
    {"key", "use_liger_kernel", "", "the head's loss never holds all logits"},
    {"key", "load_in_8bit", "model.quantize_base", base_formats},
    {"key", "load_in_4bit", "model.quantize_base", base_formats},
    {"key", "bnb_4bit_quant_type", "model.quantize_base", base_formats},
    {"key", "quantization_config", "model.quantize_base", base_formats},
    {"key", "model_type", "model.architecture"},
    {"key", "data_seed", "train.seed"},
    {"key", "random_seed", "train.seed"},
    {"key", "accelerator", "train.device"},
    {"key", "use_cpu", "train.device", "auto, cpu or cuda"},
    {"key", "no_cuda", "train.device", "auto, cpu or cuda"},
    {"key", "lora_alpha", "model.lora.alpha"},
    {"key", "lora_dropout", "model.lora.dropout"},
    {"key", "lora_r", "model.lora.r"},
    {"key", "lora_rank", "model.lora.r"},
    {"key", "lora_target_modules", "model.lora.target_modules"},
    {"key", "lora_target_linear", "model.lora.target_modules", "all-linear"},
    {"key", "lora_model_dir", "model.adapter"},
    {"key", "lora_modules_to_save", "model.lora.modules_to_save"},
    {"key", "modules_to_save", "model.lora.modules_to_save"},
    {"key", "additional_target", "model.lora.modules_to_save"},
    {"key", "use_rslora", "model.lora.use_rslora"},
    {"key", "use_dora", "model.lora.use_dora"},
    {"key", "peft_use_dora", "model.lora.use_dora"},
    {"key", "qat", "model.quantize_aware", "none, q8_0 or q4_0"},
    // Precision and sharding.
    {"key", "bf16", precision_key, precision},
    {"key", "fp16", precision_key, precision},
    {"key", "precision", precision_key, precision},
    {"key", "torch_dtype", precision_key, precision},
    {"key", "param_dtype", precision_key, precision},
    {"key", "mixed_precision_param", precision_key, precision},
    {"key", "mixed_precision_reduce", "sharding.reduce_dtype"},
    {"key", "gradient_checkpointing", "sharding.activation_checkpointing"},
    {"key", "activation_checkpoint", "sharding.activation_checkpointing"},
    {"key", "cpu_offload", "sharding.offload_params"},
    {"key", "offload_param", "sharding.offload.parameters"},
    {"key", "offload_optimizer", "sharding.offload.optimizer"},
    {"key", "strategy", strategy_key},
    {"key", "fsdp", strategy_key},
    {"key", "ddp", strategy_key, "DDP is NO_SHARD"},
    {"key", "deepspeed", strategy_key, zero_stages},
    {"key", "zero_optimization", strategy_key, zero_stages},
    {"key", "zero_stage", strategy_key, zero_stages},
    {"key", "stage", strategy_key, zero_stages},
    {"key", "zero3_init_flag", "", "each rank always creates only its shard of the model"},
    {"key", "data_parallel_shard_degree", "sharding.group_size",
     "the ranks that share one copy under HYBRID_SHARD"},
    {"key", "data_parallel_replicate_degree", "",
     "under HYBRID_SHARD every sharding.group_size ranks hold one copy"},
    {"key", "devices", "", "tessera launch --nproc-per-node N starts the ranks"},
    {"key", "num_gpus", "", "tessera launch --nproc-per-node N starts the ranks"},
    {"key", "num_processes", "", "tessera launch --nproc-per-node N starts the ranks"},
    {"key", "num_nodes", "", "tessera launch --nnodes N starts the ranks of several nodes"},
    // Sections.
    {"key", "training", "train"},
    {"key", "trainer", "train"},
    {"key", "data_loader", "data"},
    {"key", "datasets", "data.train"},
    {"key", "parallelism", "sharding"},
    {"key", "fsdp_config", "sharding"},
    {"key", "lora", "model.lora"},
    {"key", "peft", "model.lora"},
    {"key", "use_peft", "model.lora"},
    {"key", "peft_config", "model.lora"},
    {"key", "logging", "log"},
    {"key", "metrics", "log"},
    // Options.
    {"option", "num_gpus", "--nproc-per-node"},
    {"option", "ngpus", "--nproc-per-node"},
    {"option", "gpus", "--nproc-per-node"},
    {"option", "devices", "--nproc-per-node"},
    {"option", "np", "--nproc-per-node"},
    {"option", "ranks", "--nproc-per-node"},
    {"option", "num_nodes", "--nnodes"},
    {"option", "n", "--nproc-per-node"},
    {"option", "use_fsdp", "", "the recipe's section `sharding` says how ranks share the model"},
    {"option", "multi_gpu", "", "--nproc-per-node says how many ranks there are"},
    {"option", "mixed_precision", "",
     "it is a key of the recipe: tessera train RECIPE --set "
     "sharding.mixed_precision=bf16"},
    {"option", "max_length", "--max-new-tokens"},
    {"option", "max_new", "--max-new-tokens"},
    {"option", "max_tokens", "--max-new-tokens"},
    {"option", "num_tokens", "--max-new-tokens"},
    {"option", "hostfile", "", "start the launcher on every node, each with its own --node-rank"},
    {"option", "config", "", "the recipe is an argument without an option"},
    // Strategies, in a recipe and on the command line.
    {"strategy", "ddp", "NO_SHARD"},
    {"strategy", "distributed_data_parallel", "NO_SHARD"},
    {"strategy", "data_parallel", "NO_SHARD"},
    {"strategy", "zero", "", zero_stages},
    {"strategy", "zero0", "NO_SHARD"},
    {"strategy", "zero1", "SHARD_OPTIMIZER"},
    {"strategy", "zero2", "SHARD_GRAD_OP"},
    {"strategy", "zero3", "FULL_SHARD"},
    {"strategy", "stage0", "NO_SHARD"},
    {"strategy", "stage1", "SHARD_OPTIMIZER"},
    {"strategy", "stage2", "SHARD_GRAD_OP"},
    {"strategy", "stage3", "FULL_SHARD"},
    {"strategy", "0", "NO_SHARD"},
    {"strategy", "fsdp", "FULL_SHARD"},
    {"strategy", "fsdp1", "FULL_SHARD"},
    {"strategy", "fsdp2", "FULL_SHARD"},
    {"strategy", "fsdp_full_shard", "FULL_SHARD"},
    {"strategy", "hsdp", "HYBRID_SHARD"},
    {"strategy", "hybrid", "HYBRID_SHARD"},
    {"strategy", "_hybrid_shard_zero2", "HYBRID_SHARD_ZERO2"},
    {"strategy", "full", "FULL_SHARD"},
    {"strategy", "deepspeed", "FULL_SHARD", zero_stages},
    {"strategy", "deepspeed_stage_1", "SHARD_OPTIMIZER"},
    {"strategy", "deepspeed_stage_2", "SHARD_GRAD_OP"},
    {"strategy", "deepspeed_stage_3", "FULL_SHARD"},
    // Other values.
    {precision_key, "bfloat16", "bf16"},
    {precision_key, "bf16_mixed", "bf16"},
    {precision_key, "bf16_true", "bf16"},
    {precision_key, "float16", "fp16"},
    {precision_key, "16", "fp16"},
    {precision_key, "16_mixed", "fp16"},
    {precision_key, "float32", "no"},
    {precision_key, "32", "no"},
    {"train.optimizer", "adam", "adamw", "with train.weight_decay: 0 it equals Adam"},
    {"train.optimizer", "adamw_torch", "adamw"},
    {"train.optimizer", "adamw_torch_fused", "adamw"},
    {"train.optimizer", "adamw_hf", "adamw"},
    {"train.optimizer", "adamw_bnb_8bit", "adamw8bit"},
    {"train.optimizer", "adamw_8bit", "adamw8bit"},
    {"train.optimizer", "lion_32bit", "lion"},
    {"train.optimizer", "adamw_schedule_free", "schedule_free_adamw"},
    {"train.optimizer", "adamwschedulefree", "schedule_free_adamw"},
    {"train.lr_schedule", "constant_with_warmup", "constant"},
    {"train.lr_schedule", "cosine_with_min_lr", "cosine"},
    {"train.lr_schedule", "cosine_with_hard_restarts", "cosine_with_restarts"},
    {"train.lr_schedule", "poly", "polynomial"},
    {"train.lr_schedule", "warmup_stable_decay", "wsd_cosine", wsd_decays},
    {"train.lr_schedule", "wsd", "wsd_linear", wsd_decays},
    {"train.device", "gpu", "cuda"},
    {"checkpoint.dtype", "float", "fp32"},
});

// Hyphens, spaces and case do not count, nor does the punctuation in the names of ZeRO's stages.
std::string other_word_folded(std::string_view word) {
  std::string result;
  for (const char c : word) {
    result +=
        c == '-' || c == ' ' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const std::string_view stem : {"zero", "stage"}) {
    const std::size_t sign = stem.size();
    if (result.starts_with(stem) && result.size() == sign + 2 && result[sign] == '_') {
      result.erase(sign, 1);
    }
  }
  return result;
}

std::string answer(std::string_view of, std::string_view word) {
  const OtherWord* const found = other_word(of, word);
  if (found == nullptr) return "";
  if (found->here.empty()) return fmt::format("; {}", found->note);
  return fmt::format("; it is {} here{}{}", found->here, found->note.empty() ? "" : ": ",
                     found->note);
}

}  // namespace

std::span<const OtherWord> other_words() {
  return words;
}

const OtherWord* other_word(std::string_view of, std::string_view word) {
  const std::string folded = other_word_folded(word);
  const auto found = std::find_if(words.begin(), words.end(), [&](const OtherWord& one) {
    return one.of == of && one.word == folded;
  });
  return found == words.end() ? nullptr : &*found;
}

std::string other_key(std::string_view name) {
  return answer("key", name.substr(name.rfind('.') + 1));
}

std::string other_option(std::string_view word) {
  return answer("option", word.substr(std::min(word.find_first_not_of('-'), word.size())));
}

std::string other_value(std::string_view key, std::string_view value) {
  return answer(key == strategy_key ? "strategy" : key, value);
}

std::string strategy_meant(std::string_view word, const std::vector<std::string>& names) {
  const std::string other = answer("strategy", word);
  return other.empty() ? did_you_mean(word, names) : other;
}

}  // namespace tessera::training
