// The rows for fsdp_config and parallelism_config.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "training/recipe/accelerate/rows.h"
#include "training/recipe/values.h"

namespace tessera::training::accelerate {
namespace {

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

// true, false, a number of ranks, or a strategy's name. The questions of version 1 write a strategy
// under this key.
void read_reshard(const Entry& entry, Config& config) {
  const std::string word = lower_case(entry.value.text);
  const bool truth = word == "true" || word == "false";
  const bool number = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isdigit(c) != 0;
  });
  TESSERA_CHECK(!truth || config.version == 2, ErrorCode::configuration,
                "{}: {}: under fsdp_version 1 it is a strategy's name; write fsdp_version: 2, or "
                "FULL_SHARD",
                entry.where, said(entry));
  const bool ranks = number && config.version == 2;
  if (ranks && read_integer(entry.value, entry.written) < 1)
    refuse_value(entry.value, entry.written, "true, false, or a number of ranks");
  if (ranks) set(config, entry, "sharding.reshard_after_forward", entry.value);
  if (strategy_is_set(config)) {
    if (!ranks) note(config, entry, "fsdp_sharding_strategy sets this already and overrides it");
    return;
  }
  if (!truth && !ranks) return set(config, entry, "sharding.sharding_strategy", entry.value);
  const Entry named = as_strategy(entry, word == "false" ? "SHARD_GRAD_OP" : "FULL_SHARD");
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

// Accelerate would train them, with each rank's own gradients.
void read_ignored_modules(const Entry& entry, Config& config) {
  set(config, entry, "sharding.ignored_modules", entry.value);
  note(config, entry, "these modules are frozen here: their gradients are not reduced");
}

// By name and by Accelerate's number.
Examples strategy_examples() {
  const std::vector<std::pair<std::string, std::string>> meanings = {
      {"FULL_SHARD",
       "parameters, gradients and moments are sharded; parameters are gathered for each pass"},
      {"SHARD_GRAD_OP",
       "parameters, gradients and moments are sharded; parameters stay gathered until the "
       "backward"},
      {"NO_SHARD", "nothing is sharded, as in DDP"},
      {"HYBRID_SHARD", "FULL_SHARD inside each group of ranks, with a copy for each group"},
      {"HYBRID_SHARD_ZERO2",
       "SHARD_GRAD_OP inside each group of ranks, with a copy for each group"},
  };
  Examples examples;
  for (const auto& [name, meaning] : meanings) {
    examples.push_back({name, fmt::format("\"{}\"", name), meaning});
  }
  for (std::size_t i = 0; i < meanings.size(); ++i) {
    AccelerateExample numbered = examples[i];
    numbered.meaning = fmt::format("{}: {}", numbered.value, numbered.meaning);
    numbered.value = std::to_string(i + 1);
    examples.push_back(std::move(numbered));
  }
  return examples;
}

std::int64_t read_size(const Entry& entry) {
  const std::int64_t size = read_integer(entry.value, entry.written);
  if (size < 1) refuse_value(entry.value, entry.written, "at least 1");
  return size;
}

}  // namespace

std::vector<Row> rows_of_strategy() {
  return {
      {.group = fsdp_group,
       .name = "fsdp_version",
       .becomes = {},
       .help = "The version of FSDP, which decides the keys of the file; `1` if it is missing",
       .taken = {{"1", "", "keys of FSDP1: fsdp_sharding_strategy, fsdp_backward_prefetch, ..."},
                 {"2", "", "keys of FSDP2: fsdp_reshard_after_forward, ..."}},
       .refused = {"3"},
       .read = read_version},
      of_version(1, also_written(
                        {"sharding_strategy"},
                        setting(fsdp_group, "fsdp_sharding_strategy", "sharding.sharding_strategy",
                                "The state that is sharded over the ranks; a name in upper or "
                                "lower case, or a number",
                                strategy_examples(), {"6", "FULL"}))),
      {.group = fsdp_group,
       .name = "fsdp_reshard_after_forward",
       .becomes = "sharding.sharding_strategy",
       .help = "Version 2: `true` is FULL_SHARD, `false` SHARD_GRAD_OP, a number FULL_SHARD with "
               "`reshard_after_forward` to that number of ranks, as in FSDP2; the name of a "
               "strategy, as the questions of version 1 write it, is that strategy",
       .taken = {{"true", "\"FULL_SHARD\"", "freed after the forward, gathered again"},
                 {"false", "\"SHARD_GRAD_OP\"", "kept from the forward to the backward"},
                 {"2", "\"FULL_SHARD\""},
                 {"SHARD_GRAD_OP", "\"SHARD_GRAD_OP\""}},
       .refused = {"0", "FULL"},
       .aliases = {"reshard_after_forward"},
       .read = read_reshard},
      also_written({"fsdp_wrap_policy", "auto_wrap_policy"},
                   setting(fsdp_group, "fsdp_auto_wrap_policy", "sharding.auto_wrap_policy",
                           "How the model is divided into units; if left out, the recipe decides",
                           {{"TRANSFORMER_BASED_WRAP", "\"TRANSFORMER_BASED_WRAP\"",
                             "each layer of the classes to wrap"},
                            {"SIZE_BASED_WRAP", "\"SIZE_BASED_WRAP\"",
                             "modules of at least fsdp_min_num_params parameters"},
                            {"NO_WRAP", "\"NO_WRAP\"", "the whole model is one unit"}},
                           {"ALL"})),
      also_written({"fsdp_transformer_cls_to_wrap", "transformer_layer_cls_to_wrap"},
                   setting(fsdp_group, "fsdp_transformer_layer_cls_to_wrap",
                           "sharding.transformer_layer_cls_to_wrap",
                           "The classes, with commas; if left out, the model's own. A class that "
                           "the model does not have is refused when the model is built",
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
                                "The time when the backward gathers the next unit; if left out, "
                                "before this unit's gradients",
                                {{"BACKWARD_PRE", "\"BACKWARD_PRE\"",
                                  "before this one's gradients are computed"},
                                 {"BACKWARD_POST", "\"BACKWARD_POST\"",
                                  "after this one's gradients are computed"},
                                 {"NO_PREFETCH", "\"NO_PREFETCH\"", "when it is needed"},
                                 {"1", "\"BACKWARD_PRE\""},
                                 {"2", "\"BACKWARD_POST\""}},
                                {"3"}))),
      of_version(1,
                 also_written(
                     {"forward_prefetch"},
                     setting(fsdp_group, "fsdp_forward_prefetch", "sharding.forward_prefetch",
                             "Gather the next unit during a unit's forward; the bits are the same",
                             {{"true", "true", "the next unit is gathered during this one"},
                              {"false", "false", "a unit is gathered when it is needed"}},
                             {"maybe"}))),
      also_written({"limit_all_gathers"}, holds_always(fsdp_group, "fsdp_limit_all_gathers", true,
                                                       "at most two gathers are in flight")),
      also_written(
          {"offload_params"},
          setting(fsdp_group, "fsdp_offload_params", "sharding.offload_params",
                  "Parameters, gradients and moments on the host; for CPU ranks they always are",
                  {{"true", "true", "on the host"}, {"false", "false", "on the device"}},
                  {"maybe"})),
      also_written(
          {"activation_checkpointing"},
          setting(fsdp_group, "fsdp_activation_checkpointing", "sharding.activation_checkpointing",
                  "Recompute a unit's activations in the backward",
                  {{"true", "\"true\"", "less memory, about a third more work"},
                   {"false", "\"false\"", "activations are kept"}},
                  {"maybe"})),
      of_version(
          2, also_written({"activation_checkpointing_offload"},
                          setting(fsdp_group, "fsdp_activation_checkpointing_offload",
                                  "sharding.activation_offload",
                                  "On a GPU: the inputs that recomputation keeps are on the host",
                                  {{"false", "false"}}, {"maybe"}))),
  };
}

std::vector<Row> rows_of_state() {
  return {
      {.group = fsdp_group,
       .name = "fsdp_state_dict_type",
       .becomes = "checkpoint.state_dict_type",
       .help = "Whole safetensors files, or one per rank; if left out in the file and the recipe, "
               "version 1 has FULL and version 2 SHARDED",
       .taken = {{"FULL_STATE_DICT", "\"FULL_STATE_DICT\"", "files that transformers reads"},
                 {"SHARDED_STATE_DICT", "\"SHARDED_STATE_DICT\"", "a file for each rank"},
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
                                "a rank always reads only its shard")),
      {.group = fsdp_group,
       .name = "fsdp_ignored_modules",
       .becomes = "sharding.ignored_modules",
       .help = "Modules whose full name matches the expression stay whole on every rank and are "
               "frozen (Accelerate trains them with each rank's own gradients)",
       .taken = {{"head", "\"head\""}, {"'.*\\.wpe'", "\".*\\\\.wpe\""}},
       .refused = {"'('"},
       .aliases = {"ignored_modules"},
       .read = read_ignored_modules},
      unused(fsdp_group, "xla", "TPUs", {{"false"}}),
      unused(fsdp_group, "xla_fsdp_v2", "TPUs", {{"false"}}),
      unused(fsdp_group, "xla_fsdp_grad_ckpt", "TPUs", {{"false"}}),
      unused(fsdp_group, "xla_fsdp_settings", "TPUs", {{"{}"}}),
  };
}

std::vector<Row> rows_of_parallelism() {
  const std::string prefix = "parallelism_config_";
  std::vector<Row> rows = {
      {.group = parallelism_group,
       .name = prefix + "dp_replicate_size",
       .becomes = "sharding.sharding_strategy",
       .help = "Copies of the model: above 1 HYBRID_SHARD, or HYBRID_SHARD_ZERO2 with "
               "`fsdp_reshard_after_forward: false`",
       .taken = {{"1", "\"FULL_SHARD\"", "one copy, over all ranks"}, {"2", "\"HYBRID_SHARD\""}},
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
      {.group = parallelism_group,
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
  for (const char* size : {"cp_size", "sp_size"}) {
    rows.push_back({.group = parallelism_group,
                    .name = prefix + size,
                    .becomes = "sharding.context_parallel",
                    .help = "Ranks that hold each sequence together",
                    .taken = {{"1", "1"}, {"2", "2"}},
                    .refused = {"0"},
                    .aliases = {size},
                    .read = [](const Entry& entry, Config& config) {
                      if (read_size(entry) > 1) {
                        set(config, entry, "sharding.context_parallel", entry.value);
                      }
                    }});
  }
  for (const char* name : {"tp_size"}) {
    rows.push_back(
        also_written({name}, refused_above(parallelism_group, prefix + name, 1,
                                           "tensor parallelism is not available in this version")));
  }
  for (const char* name : {"cp_backend", "cp_comm_strategy", "sp_backend", "sp_seq_length",
                           "sp_seq_length_is_variable", "sp_attn_implementation"}) {
    rows.push_back(also_written({name}, unused(parallelism_group, prefix + name,
                                               "context and sequence parallelism", {{"torch"}})));
  }
  return rows;
}

}  // namespace tessera::training::accelerate
