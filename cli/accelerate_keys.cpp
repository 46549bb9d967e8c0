// The table of Accelerate's keys.
#include "cli/accelerate_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/nearest.h"
#include "cli/recipe_values.h"
#include "kernels/base/error.h"

namespace tessera::cli {
namespace {

using Entry = AccelerateEntry;
using Config = AccelerateConfig;
using Row = AccelerateKey;
using Examples = std::vector<AccelerateExample>;

YamlNode scalar(std::string text, const std::string& where) {
  YamlNode node;
  node.kind = YamlNode::Kind::scalar;
  node.text = std::move(text);
  node.where = where;
  return node;
}

std::string said(const Entry& entry) {
  return fmt::format("{}: {}", entry.written, describe(entry.value));
}

void set(Config& config, const Entry& entry, const std::string& recipe_key, YamlNode value) {
  config.settings.push_back({recipe_key, std::move(value), entry.where, said(entry), false});
}

void note(Config& config, const Entry& entry, std::string_view text) {
  config.notes.push_back(fmt::format("{}: {}: {}", entry.where, said(entry), text));
}

// A key whose value is one of the recipe's.
Row setting(std::string group, std::string name, std::string recipe_key, std::string help,
            Examples taken, std::vector<std::string> refused = {}) {
  Row row{.group = std::move(group),
          .name = std::move(name),
          .becomes = recipe_key,
          .help = {},
          .taken = std::move(taken),
          .refused = std::move(refused)};
  row.help = std::move(help);
  row.read = [recipe_key](const Entry& entry, Config& config) {
    set(config, entry, recipe_key, entry.value);
  };
  return row;
}

// A key that is so here whatever a file says; a file that says otherwise is told.
Row holds_always(std::string group, std::string name, bool so, std::string help) {
  Row row{.group = std::move(group),
          .name = std::move(name),
          .becomes = {},
          .help = help,
          .taken = {{"true"}, {"false"}},
          .refused = {"maybe"}};
  row.read = [so, help = std::move(help)](const Entry& entry, Config& config) {
    if (read_bool(entry.value, entry.written) != so) {
      note(config, entry, "changes nothing: " + help);
    }
  };
  return row;
}

// A key with nothing to set here, whose usual values need no word.
Row without_effect(std::string name, std::string help, Examples taken) {
  return {.group = {},
          .name = std::move(name),
          .becomes = {},
          .help = std::move(help),
          .taken = std::move(taken),
          .read = [](const Entry&, Config&) {}};
}

Row unused(std::string group, std::string name, std::string help, Examples taken) {
  Row row{.group = std::move(group),
          .name = std::move(name),
          .becomes = {},
          .help = std::move(help),
          .taken = std::move(taken)};
  row.elsewhere = true;
  return row;
}

Row also_written(std::vector<std::string> aliases, Row row) {
  row.aliases = std::move(aliases);
  return row;
}

Row of_version(int version, Row row) {
  row.version = version;
  return row;
}

Row refused_above(std::string group, std::string name, std::int64_t most, std::string help) {
  Row row{.group = std::move(group),
          .name = std::move(name),
          .becomes = {},
          .help = help,
          .taken = {{fmt::format("{}", most)}},
          .refused = {fmt::format("{}", most + 1)}};
  row.read = [most, help = std::move(help)](const Entry& entry, Config&) {
    TESSERA_CHECK(read_integer(entry.value, entry.written) <= most, ErrorCode::configuration,
                  "{}: {}: {}", entry.where, said(entry), help);
  };
  return row;
}

// ---- the top of a file

// Files of older versions say it with a truth.
void read_fp16(const Entry& entry, Config& config) {
  const bool wanted = read_bool(entry.value, entry.written);
  set(config, entry, "sharding.mixed_precision", scalar(wanted ? "fp16" : "no", entry.where));
}

void read_use_cpu(const Entry& entry, Config& config) {
  if (read_bool(entry.value, entry.written)) {
    set(config, entry, "train.device", scalar("cpu", entry.where));
  }
}

void read_processes(const Entry& entry, Config& config) {
  constexpr std::int64_t most = 4096;
  const std::int64_t count = read_integer(entry.value, entry.written);
  TESSERA_CHECK(count == -1 || (count >= 1 && count <= most), ErrorCode::configuration,
                "{}: {} must be a number of ranks from 1 to {}, or -1 for --nproc-per-node's, got "
                "{}",
                entry.where, entry.written, most, count);
  if (count > 0) config.processes = static_cast<int>(count);
}

void read_port(const Entry& entry, Config& config) {
  const std::int64_t port = read_integer(entry.value, entry.written);
  TESSERA_CHECK(port >= 0 && port <= 65535, ErrorCode::configuration,
                "{}: {} must be a port from 0 (a free one) to 65535, got {}", entry.where,
                entry.written, port);
  config.master_port = static_cast<int>(port);
}

void read_gpu_ids(const Entry& entry, Config& config) {
  std::string ids;
  if (entry.value.kind == YamlNode::Kind::sequence) {
    for (const std::string& id : read_texts(entry.value, entry.written)) {
      ids += (ids.empty() ? "" : ",") + id;
    }
  } else {
    ids = read_text(entry.value, entry.written);
  }
  if (lower_case(ids) != "all") config.gpu_ids = ids;
}

void read_environment(const Entry& entry, Config& config) {
  const std::string name = lower_case(read_text(entry.value, entry.written));
  if (name == "amazon_sagemaker") return note(config, entry, "the ranks run on this machine");
  if (name != "local_machine" && name != "0") {
    refuse_value(entry.value, entry.written, "LOCAL_MACHINE");
  }
}

std::vector<Row> rows_of_the_world() {
  return {
      {.group = {},
       .name = "distributed_type",
       .becomes = "sharding.sharding_strategy",
       .help = "`FSDP`: as `fsdp_config` says; the others are DDP, that is NO_SHARD, where the "
               "recipe names no strategy",
       .taken = {{"FSDP", "\"FULL_SHARD\""},
                 {"MULTI_GPU", "\"NO_SHARD\""},
                 {"MULTI_CPU", "\"NO_SHARD\""},
                 {"'NO'", "\"NO_SHARD\""}},
       .refused = {"DEEPSPEED", "MEGATRON_LM", "XLA", "TP", "MULTI_NPU"},
       .read = read_distributed_type},
      {.group = {},
       .name = "num_processes",
       .becomes = "`tessera launch --nproc-per-node`",
       .help = "Ranks to start; `-1`: the command line says it",
       .taken = {{"2"}, {"-1"}},
       .refused = {"0"},
       .read = read_processes},
      setting("", "mixed_precision", "sharding.mixed_precision",
              "bf16 parameters and wire, fp32 masters and sums",
              {{"'no'", "\"no\""}, {"bf16", "\"bf16\""}}, {"fp16", "fp8"}),
      {.group = {},
       .name = "fp16",
       .becomes = "sharding.mixed_precision",
       .help = "An old file's `mixed_precision`",
       .taken = {{"false", "\"no\""}},
       .refused = {"true"},
       .read = read_fp16},
      {.group = {},
       .name = "use_cpu",
       .becomes = "train.device",
       .help = "`true`: the CPU, where `false` takes a GPU if every rank has one",
       .taken = {{"true", "\"cpu\""}, {"false", "\"auto\""}},
       .refused = {"maybe"},
       .read = read_use_cpu},
      {.group = {},
       .name = "gpu_ids",
       .becomes = "CUDA_VISIBLE_DEVICES of the ranks",
       .help = "The GPUs that ranks see",
       .taken = {{"all"}, {"0,1"}},
       .read = read_gpu_ids},
      {.group = {},
       .name = "main_process_ip",
       .becomes = "`tessera launch --master-addr`",
       .help = "Where rank 0 is",
       .taken = {{"127.0.0.1"}},
       .read =
           [](const Entry& entry, Config& config) {
             config.master_address = read_text(entry.value, entry.written);
           }},
      {.group = {},
       .name = "main_process_port",
       .becomes = "`tessera launch --master-port`",
       .help = "Rank 0's port; `0`: a free one",
       .taken = {{"29500"}, {"0"}},
       .refused = {"70000"},
       .read = read_port},
      refused_above("", "num_machines", 1, "several machines are not available in this version"),
      {.group = {},
       .name = "compute_environment",
       .becomes = {},
       .help = "Ranks run on this machine",
       .taken = {{"LOCAL_MACHINE"}, {"AMAZON_SAGEMAKER"}},
       .refused = {"MOON"},
       .read = read_environment},
  };
}

std::vector<Row> rows_without_effect() {
  return {
      without_effect("machine_rank", "There is one machine", {{"0"}}),
      without_effect("rdzv_backend", "Ranks of one host find each other without one",
                     {{"static"}, {"c10d"}}),
      without_effect("same_network", "There is one machine", {{"true"}, {"false"}}),
      without_effect("main_training_function", "A notebook's", {{"main"}}),
      without_effect("debug", "Collectives are always checked against each other",
                     {{"false"}, {"true"}}),
      without_effect("enable_cpu_affinity", "Ranks share the cores by number",
                     {{"false"}, {"true"}}),
  };
}

std::vector<Row> rows_of_elsewhere() {
  std::vector<Row> rows;
  const auto add = [&](const std::string& name, const std::string& help, const char* value) {
    rows.push_back(unused("", name, help, {{value}}));
  };
  for (const char* name : {"downcast_bf16", "tpu_use_cluster", "tpu_use_sudo"}) {
    add(name, "TPUs", "'no'");
  }
  for (const char* name : {"tpu_name", "tpu_zone"}) add(name, "TPUs", "pod");
  for (const char* name : {"tpu_env", "tpu_vm", "commands", "command_file"}) {
    add(name, "TPUs", "[]");
  }
  for (const char* name : {"ec2_instance_type", "iam_role_name", "image_uri", "profile", "region",
                           "base_job_name", "pytorch_version", "transformers_version", "py_version",
                           "sagemaker_inputs_file", "sagemaker_metrics_file", "additional_args"}) {
    add(name, "SageMaker", "x");
  }
  add("deepspeed_config", "DeepSpeed", "{zero_stage: 3}");
  add("megatron_lm_config", "Megatron-LM", "{megatron_lm_tp_degree: 2}");
  add("mpirun_config", "mpirun: ranks of one host meet in shared memory", "{mpirun_ccl: '1'}");
  add("fp8_config", "fp8", "{backend: TE}");
  add("dynamo_config", "torch.compile", "{dynamo_backend: INDUCTOR}");
  add("dynamo_backend", "torch.compile", "'NO'");
  return rows;
}

// ---- fsdp_config

Entry as_strategy(const Entry& entry, const char* strategy) {
  Entry named = entry;
  named.value = scalar(strategy, entry.where);
  return named;
}

bool strategy_is_set(const Config& config) {
  return std::any_of(config.settings.begin(), config.settings.end(), [](const auto& setting) {
    return setting.recipe_key == "sharding.sharding_strategy" && !setting.assumed;
  });
}

void read_reshard(const Entry& entry, Config& config) {
  const std::string word = lower_case(entry.value.text);
  const bool truth = word == "true" || word == "false";
  TESSERA_CHECK(!truth || config.version == 2, ErrorCode::configuration,
                "{}: {}: under fsdp_version 1 it is a strategy's name; write fsdp_version: 2, or "
                "FULL_SHARD",
                entry.where, said(entry));
  TESSERA_CHECK(truth || config.version == 1, ErrorCode::configuration,
                "{}: {}: under fsdp_version 2 it is true (FULL_SHARD) or false (SHARD_GRAD_OP)",
                entry.where, said(entry));
  if (strategy_is_set(config)) {
    return note(config, entry, "fsdp_sharding_strategy says it already, and goes before it");
  }
  if (!truth) return set(config, entry, "sharding.sharding_strategy", entry.value);
  const Entry named = as_strategy(entry, word == "true" ? "FULL_SHARD" : "SHARD_GRAD_OP");
  set(config, entry, "sharding.sharding_strategy", named.value);
}

void read_version(const Entry& entry, Config& config) {
  const std::int64_t version = read_integer(entry.value, entry.written);
  if (version != 1 && version != 2) refuse_value(entry.value, entry.written, "1 or 2");
  config.version = static_cast<int>(version);
}

void read_state_dict_type(const Entry& entry, Config& config) {
  set(config, entry, "checkpoint.state_dict_type", entry.value);
}

void refuse_ignored_modules(const Entry& entry, Config&) {
  fail(ErrorCode::configuration,
       "{}: {}: every module is sharded here; modules to leave out are not available in this "
       "version",
       entry.where, said(entry));
}

constexpr const char* fsdp_group = "fsdp_config";

std::vector<Row> rows_of_strategy() {
  return {
      {.group = fsdp_group,
       .name = "fsdp_version",
       .becomes = {},
       .help = "Which keys a file may have; `1` where it does not say",
       .taken = {{"1"}, {"2"}},
       .refused = {"3"},
       .read = read_version},
      of_version(1, also_written(
                        {"sharding_strategy"},
                        setting(fsdp_group, "fsdp_sharding_strategy", "sharding.sharding_strategy",
                                "What ranks split; a name in any case or a number",
                                {{"FULL_SHARD", "\"FULL_SHARD\""},
                                 {"SHARD_GRAD_OP", "\"SHARD_GRAD_OP\""},
                                 {"NO_SHARD", "\"NO_SHARD\""},
                                 {"HYBRID_SHARD", "\"HYBRID_SHARD\""},
                                 {"HYBRID_SHARD_ZERO2", "\"HYBRID_SHARD_ZERO2\""},
                                 {"1", "\"FULL_SHARD\""},
                                 {"2", "\"SHARD_GRAD_OP\""},
                                 {"3", "\"NO_SHARD\""},
                                 {"4", "\"HYBRID_SHARD\""},
                                 {"5", "\"HYBRID_SHARD_ZERO2\""}},
                                {"6", "FULL"}))),
      {.group = fsdp_group,
       .name = "fsdp_reshard_after_forward",
       .becomes = "sharding.sharding_strategy",
       .help = "Version 2: `true` is FULL_SHARD, `false` SHARD_GRAD_OP; version 1: a strategy's "
               "name, which Accelerate's own launcher does not read there",
       .taken = {{"true", "\"FULL_SHARD\""}, {"false", "\"SHARD_GRAD_OP\""}},
       .refused = {"SHARD_GRAD_OP"},
       .aliases = {"reshard_after_forward"},
       .read = read_reshard},
      also_written({"fsdp_wrap_policy", "auto_wrap_policy"},
                   setting(fsdp_group, "fsdp_auto_wrap_policy", "sharding.auto_wrap_policy",
                           "What makes a unit; left out, the recipe's",
                           {{"TRANSFORMER_BASED_WRAP", "\"TRANSFORMER_BASED_WRAP\""},
                            {"SIZE_BASED_WRAP", "\"SIZE_BASED_WRAP\""},
                            {"NO_WRAP", "\"NO_WRAP\""}},
                           {"ALL"})),
      also_written({"fsdp_transformer_cls_to_wrap", "transformer_layer_cls_to_wrap"},
                   setting(fsdp_group, "fsdp_transformer_layer_cls_to_wrap",
                           "sharding.transformer_layer_cls_to_wrap",
                           "The classes, with commas; left out, the model's own. A class that the "
                           "model does not have is refused when it is built",
                           {{"BertLayer", "[\"BertLayer\"]"},
                            {"GPT2Block,Linear", "[\"GPT2Block\",\"Linear\"]"}})),
      also_written({"fsdp_min_num_param", "min_num_param", "min_num_params"},
                   setting(fsdp_group, "fsdp_min_num_params", "sharding.min_num_params",
                           "SIZE_BASED_WRAP's smallest unit",
                           {{"100000000", "100000000"}, {"1e8", "100000000"}}, {"0"})),
  };
}

std::vector<Row> rows_of_schedule() {
  return {
      of_version(1, also_written(
                        {"fsdp_backward_prefetch_policy", "backward_prefetch"},
                        setting(fsdp_group, "fsdp_backward_prefetch", "sharding.backward_prefetch",
                                "When the next unit is gathered in the backward; left "
                                "out, before this one's gradients",
                                {{"BACKWARD_PRE", "\"BACKWARD_PRE\""},
                                 {"BACKWARD_POST", "\"BACKWARD_POST\""},
                                 {"NO_PREFETCH", "\"NO_PREFETCH\""},
                                 {"1", "\"BACKWARD_PRE\""},
                                 {"2", "\"BACKWARD_POST\""}},
                                {"3"}))),
      of_version(
          1, also_written({"forward_prefetch"},
                          setting(fsdp_group, "fsdp_forward_prefetch", "sharding.forward_prefetch",
                                  "Whether the next unit is gathered in the forward; the "
                                  "bits are the same",
                                  {{"true", "true"}, {"false", "false"}}, {"maybe"}))),
      also_written({"limit_all_gathers"}, holds_always(fsdp_group, "fsdp_limit_all_gathers", true,
                                                       "at most two gathers are in flight")),
      also_written({"offload_params"},
                   setting(fsdp_group, "fsdp_offload_params", "sharding.offload_params",
                           "Parameters, gradients and moments on the host; CPU ranks have them "
                           "there anyway",
                           {{"true", "true"}, {"false", "false"}}, {"maybe"})),
      also_written(
          {"activation_checkpointing"},
          setting(fsdp_group, "fsdp_activation_checkpointing", "sharding.activation_checkpointing",
                  "Recompute a unit's activations in the backward",
                  {{"true", "\"true\""}, {"false", "\"false\""}}, {"maybe"})),
      of_version(2, also_written({"activation_checkpointing_offload"},
                                 setting(fsdp_group, "fsdp_activation_checkpointing_offload",
                                         "sharding.activation_offload",
                                         "On a GPU: what recomputation keeps waits on the host",
                                         {{"false", "false"}}, {"maybe"}))),
  };
}

std::vector<Row> rows_of_state() {
  return {
      {.group = fsdp_group,
       .name = "fsdp_state_dict_type",
       .becomes = "checkpoint.state_dict_type",
       .help = "Whole safetensors files or one a rank; left out, version 1 has FULL and version 2 "
               "SHARDED, where the recipe does not say",
       .taken = {{"FULL_STATE_DICT", "\"FULL_STATE_DICT\""},
                 {"SHARDED_STATE_DICT", "\"SHARDED_STATE_DICT\""},
                 {"1", "\"FULL_STATE_DICT\""},
                 {"3", "\"SHARDED_STATE_DICT\""}},
       .refused = {"LOCAL_STATE_DICT", "2"},
       .aliases = {"state_dict_type"},
       .read = read_state_dict_type},
      of_version(1, also_written({"use_orig_params"},
                                 holds_always(fsdp_group, "fsdp_use_orig_params", true,
                                              "parameters always keep their names and shapes"))),
      of_version(1, also_written({"sync_module_states"},
                                 holds_always(fsdp_group, "fsdp_sync_module_states", true,
                                              "ranks always begin with equal weights"))),
      also_written({"cpu_ram_efficient_loading"},
                   holds_always(fsdp_group, "fsdp_cpu_ram_efficient_loading", true,
                                "a rank always reads only its share")),
      {.group = fsdp_group,
       .name = "fsdp_ignored_modules",
       .becomes = {},
       .help = "Every module is sharded here",
       .taken = {{"null"}},
       .refused = {"head"},
       .aliases = {"ignored_modules"},
       .read = refuse_ignored_modules},
      unused(fsdp_group, "xla", "TPUs", {{"false"}}),
      unused(fsdp_group, "xla_fsdp_v2", "TPUs", {{"false"}}),
      unused(fsdp_group, "xla_fsdp_grad_ckpt", "TPUs", {{"false"}}),
      unused(fsdp_group, "xla_fsdp_settings", "TPUs", {{"{}"}}),
  };
}

// ---- parallelism_config

constexpr const char* parallelism = "parallelism_config";

std::int64_t read_size(const Entry& entry) {
  const std::int64_t size = read_integer(entry.value, entry.written);
  if (size < 1) refuse_value(entry.value, entry.written, "at least 1");
  return size;
}

std::vector<Row> rows_of_parallelism() {
  const std::string prefix = "parallelism_config_";
  std::vector<Row> rows = {
      {.group = parallelism,
       .name = prefix + "dp_replicate_size",
       .becomes = "sharding.sharding_strategy",
       .help = "Copies of the model: above 1 HYBRID_SHARD, or HYBRID_SHARD_ZERO2 with "
               "`fsdp_reshard_after_forward: false`",
       .taken = {{"1", "\"FULL_SHARD\""}, {"2", "\"HYBRID_SHARD\""}},
       .refused = {"0"},
       .aliases = {"dp_replicate_size"},
       .read =
           [](const Entry& entry, Config& config) {
             if (read_size(entry) == 1) return;
             const bool keeps =
                 std::any_of(config.settings.begin(), config.settings.end(), [](const auto& one) {
                   return one.recipe_key == "sharding.sharding_strategy" &&
                          one.value.text == "SHARD_GRAD_OP";
                 });
             set(config, entry, "sharding.sharding_strategy",
                 scalar(keeps ? "HYBRID_SHARD_ZERO2" : "HYBRID_SHARD", entry.where));
           }},
      {.group = parallelism,
       .name = prefix + "dp_shard_size",
       .becomes = "sharding.group_size",
       .help = "Ranks that share one copy of the model",
       .taken = {{"1", "null"}, {"2", "2"}},
       .refused = {"0"},
       .aliases = {"dp_shard_size"},
       .read =
           [](const Entry& entry, Config& config) {
             if (read_size(entry) > 1) set(config, entry, "sharding.group_size", entry.value);
           }},
  };
  for (const char* name : {"tp_size", "cp_size", "sp_size"}) {
    rows.push_back(
        also_written({name}, refused_above(parallelism, prefix + name, 1,
                                           "data parallelism alone is available in this version")));
  }
  for (const char* name : {"cp_backend", "cp_comm_strategy", "sp_backend", "sp_seq_length",
                           "sp_seq_length_is_variable", "sp_attn_implementation"}) {
    rows.push_back(also_written({name}, unused(parallelism, prefix + name,
                                               "context and sequence parallelism", {{"torch"}})));
  }
  return rows;
}

}  // namespace

void read_distributed_type(const AccelerateEntry& entry, AccelerateConfig& config) {
  static const std::vector<std::pair<std::string, std::string>> others = {
      {"DEEPSPEED",
       "use distributed_type: FSDP with fsdp_sharding_strategy FULL_SHARD for ZeRO-3 or "
       "SHARD_GRAD_OP for ZeRO-2"},
      {"MEGATRON_LM", "use distributed_type: FSDP; tensor and pipeline parallelism are not here"},
      {"TP", "use distributed_type: FSDP; tensor parallelism is not here"},
      {"XLA", "use distributed_type: FSDP on CPUs or NVIDIA GPUs; TPUs are not supported"},
      {"MODEL_PARALLEL", "use distributed_type: FSDP"},
  };
  const std::string name = read_text(entry.value, entry.written);
  const std::string folded = lower_case(name);
  if (folded == "fsdp") {
    config.fsdp = true;
    return;
  }
  if (folded == "no" || folded == "false" || folded == "multi_cpu" || folded == "multi_gpu" ||
      folded == "data_parallel") {
    config.settings.push_back({"sharding.sharding_strategy", scalar("NO_SHARD", entry.where),
                               entry.where, said(entry), true});
    if (folded == "multi_cpu") set(config, entry, "train.device", scalar("cpu", entry.where));
    return;
  }
  for (const auto& [other, way_out] : others) {
    TESSERA_CHECK(folded != lower_case(other), ErrorCode::configuration,
                  "{}: distributed_type: {} is not available; {}", entry.where, other, way_out);
  }
  TESSERA_CHECK(!folded.starts_with("multi_"), ErrorCode::configuration,
                "{}: distributed_type: {} is for hardware that is not supported; use MULTI_GPU, "
                "MULTI_CPU or FSDP",
                entry.where, name);
  fail(ErrorCode::configuration, "{}: distributed_type: {} is unknown{}", entry.where, name,
       did_you_mean(name, {"FSDP", "MULTI_GPU", "MULTI_CPU", "NO"}));
}

const std::vector<AccelerateKey>& accelerate_keys() {
  static const std::vector<AccelerateKey> keys = [] {
    std::vector<AccelerateKey> all;
    for (auto part :
         {rows_of_the_world(), rows_without_effect(), rows_of_elsewhere(), rows_of_strategy(),
          rows_of_schedule(), rows_of_state(), rows_of_parallelism()}) {
      for (AccelerateKey& row : part) all.push_back(std::move(row));
    }
    return all;
  }();
  return keys;
}

const std::vector<std::string>& accelerate_groups() {
  static const std::vector<std::string> groups = {fsdp_group, parallelism};
  return groups;
}

}  // namespace tessera::cli
