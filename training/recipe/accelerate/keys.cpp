// The rows for the top of a file, and the table.
#include "training/recipe/accelerate/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text/nearest.h"
#include "training/recipe/accelerate/rows.h"
#include "training/recipe/values.h"

namespace tessera::training {
namespace accelerate {
namespace {

// Files of older versions have this key, with true or false.
void read_fp16(const Entry& entry, Config& config) {
  const bool wanted = read_bool(entry.value, entry.written);
  const bool said_already =
      std::any_of(config.settings.begin(), config.settings.end(), [](const auto& setting) {
        return setting.recipe_key == "sharding.mixed_precision" && !setting.assumed;
      });
  if (said_already) {
    return note(config, entry, "mixed_precision sets this already and overrides it");
  }
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

void read_machines(const Entry& entry, Config& config) {
  constexpr std::int64_t most = 4096;
  const std::int64_t count = read_integer(entry.value, entry.written);
  TESSERA_CHECK(count >= 1 && count <= most, ErrorCode::configuration,
                "{}: {} must be a number of nodes from 1 to {}, got {}", entry.where, entry.written,
                most, count);
  config.machines = static_cast<int>(count);
}

void read_machine_rank(const Entry& entry, Config& config) {
  const std::int64_t number = read_integer(entry.value, entry.written);
  TESSERA_CHECK(number >= 0 && number < 4096, ErrorCode::configuration,
                "{}: {} must be a node's number, from 0, got {}", entry.where, entry.written,
                number);
  config.machine_rank = static_cast<int>(number);
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
  if (name == "amazon_sagemaker")
    return note(config, entry, "the ranks run on the launcher's node");
  if (name != "local_machine" && name != "0") {
    refuse_value(entry.value, entry.written, "LOCAL_MACHINE");
  }
}

void read_mixed_precision(const Entry& entry, Config& config) {
  const std::string name = read_text(entry.value, entry.written);
  TESSERA_CHECK(lower_case(name) != "fp8", ErrorCode::configuration,
                "{}: {}: fp8 is not available; use bf16, fp16 or no", entry.where, entry.written);
  set(config, entry, "sharding.mixed_precision", entry.value);
}

// A type that Tessera does not have is refused with the way out.
void read_distributed_type(const Entry& entry, Config& config) {
  static const std::vector<std::pair<std::string, std::string>> others = {
      {"DEEPSPEED",
       "use distributed_type: FSDP with fsdp_sharding_strategy FULL_SHARD for ZeRO-3, "
       "SHARD_GRAD_OP for ZeRO-2 or SHARD_OPTIMIZER for ZeRO-1"},
      {"MEGATRON_LM",
       "use distributed_type: FSDP; tensor and pipeline parallelism are not available"},
      {"TP", "use distributed_type: FSDP; tensor parallelism is not available"},
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
    if (folded == "no" || folded == "false") config.processes = 1;  // unless the file sets more
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

}  // namespace

std::vector<Row> rows_of_the_world() {
  return {
      {.group = {},
       .name = "distributed_type",
       .becomes = "sharding.sharding_strategy",
       .help = "`FSDP`: the strategy of `fsdp_config`; the others are DDP, which is NO_SHARD, if "
               "the recipe names no strategy",
       .taken = {{"FSDP", "\"FULL_SHARD\"", "sharded, with the strategy of fsdp_config"},
                 {"MULTI_GPU", "\"NO_SHARD\"", "DDP on GPUs: a whole model on each rank"},
                 {"MULTI_CPU", "\"NO_SHARD\"", "DDP on CPUs: a whole model on each rank"},
                 {"'NO'", "\"NO_SHARD\"", "one rank, unless num_processes is larger"}},
       .refused = {"DEEPSPEED", "MEGATRON_LM", "XLA", "TP", "MULTI_NPU"},
       .read = read_distributed_type},
      {.group = {},
       .name = "num_processes",
       .becomes = "`tessera launch --num-processes`",
       .help = "Ranks to start, on all nodes together; `-1`: as many as on the command line",
       .taken = {{"2"}, {"-1", "", "as many as in --nproc-per-node"}},
       .refused = {"0"},
       .read = read_processes},
      {.group = {},
       .name = "mixed_precision",
       .becomes = "sharding.mixed_precision",
       .help =
           "The dtype of parameters in compute and on the wire; master shards and sums are fp32",
       .taken = {{"'no'", "\"no\"", "fp32 throughout"},
                 {"bf16", "\"bf16\"", "computed and sent in bf16, half of the bytes"},
                 {"fp16", "\"fp16\"", "computed and sent in fp16, with a loss scaler"}},
       .refused = {"fp8"},
       .read = read_mixed_precision},
      {.group = {},
       .name = "fp16",
       .becomes = "sharding.mixed_precision",
       .help = "The `mixed_precision` of old files",
       .taken = {{"true", "\"fp16\"", "computed and sent in fp16, with a loss scaler"},
                 {"false", "\"no\"", "fp32 throughout"}},
       .refused = {"maybe"},
       .read = read_fp16},
      {.group = {},
       .name = "use_cpu",
       .becomes = "train.device",
       .help = "`true`: the CPU; `false`: a GPU if every rank has one",
       .taken = {{"true", "\"cpu\"", "on the CPU, even if there is a GPU"},
                 {"false", "\"auto\"", "on a GPU if every rank has one, else on the CPU"}},
       .refused = {"maybe"},
       .read = read_use_cpu},
      {.group = {},
       .name = "gpu_ids",
       .becomes = "CUDA_VISIBLE_DEVICES of the ranks",
       .help = "The GPUs that ranks see",
       .taken = {{"all", "", "every GPU of the node"}, {"0,1"}},
       .read = read_gpu_ids},
      {.group = {},
       .name = "main_process_ip",
       .becomes = "`tessera launch --master-addr`",
       .help = "The address of rank 0",
       .taken = {{"127.0.0.1"}},
       .read =
           [](const Entry& entry, Config& config) {
             config.master_address = read_text(entry.value, entry.written);
           }},
      {.group = {},
       .name = "main_process_port",
       .becomes = "`tessera launch --master-port`",
       .help = "Rank 0's port; `0`: a free one",
       .taken = {{"29500"}, {"0", "", "a free one"}},
       .refused = {"70000"},
       .read = read_port},
      {.group = {},
       .name = "num_machines",
       .becomes = "`tessera launch --nnodes`",
       .help = "Nodes, each with a launcher; `num_processes` counts the ranks of all nodes",
       .taken = {{"1", "", "this node alone"}, {"2"}},
       .refused = {"0"},
       .read = read_machines},
      {.group = {},
       .name = "machine_rank",
       .becomes = "`tessera launch --node-rank`",
       .help = "The number of this node",
       .taken = {{"0", "", "the node of rank 0"}, {"1"}},
       .refused = {"-1"},
       .read = read_machine_rank},
      {.group = {},
       .name = "compute_environment",
       .becomes = {},
       .help = "Ranks run on the launcher's node",
       .taken = {{"LOCAL_MACHINE"}, {"AMAZON_SAGEMAKER"}},
       .refused = {"MOON"},
       .read = read_environment},
  };
}

std::vector<Row> rows_without_effect() {
  return {
      without_effect("rdzv_backend", "Ranks do not need it to find each other",
                     {{"static"}, {"c10d"}}),
      without_effect("same_network", "Nodes reach each other by main_process_ip",
                     {{"true"}, {"false"}}),
      without_effect("main_training_function", "Only for notebooks", {{"main"}}),
      without_effect("debug", "Collectives are always checked against each other",
                     {{"false"}, {"true"}}),
      without_effect("enable_cpu_affinity", "Ranks share the cores in the order of their numbers",
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
  add("mpirun_config", "mpirun: ranks of one node communicate through shared memory",
      "{mpirun_ccl: '1'}");
  add("ipex_config", "Intel's extension for PyTorch", "{ipex: true}");
  add("fp8_config", "fp8", "{backend: TE}");
  add("dynamo_config", "torch.compile", "{dynamo_backend: INDUCTOR}");
  add("dynamo_backend", "torch.compile", "'NO'");
  return rows;
}

}  // namespace accelerate

const std::vector<AccelerateKey>& accelerate_keys() {
  static const std::vector<AccelerateKey> keys = [] {
    std::vector<AccelerateKey> all;
    using namespace accelerate;
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
  static const std::vector<std::string> groups = {accelerate::fsdp_group,
                                                  accelerate::parallelism_group};
  return groups;
}

}  // namespace tessera::training
