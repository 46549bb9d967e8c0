// Accelerate's configuration files: every row of the table of keys, the files of both versions, and
// precedence.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/cli/program_testing.h"
#include "training/recipe/accelerate/config.h"
#include "training/recipe/accelerate/keys.h"

namespace tessera::training {
namespace {

std::string source_file(const std::string& name) {
  const char* folder = std::getenv("TESSERA_SOURCE_DIR");
  return std::string(folder != nullptr ? folder : ".") + "/" + name;
}

const std::string minimal = "data: {train: text}\n";

Recipe under(const std::string& file, const std::string& recipe = minimal,
             const std::vector<std::string>& overrides = {}) {
  const AccelerateConfig config = parse_accelerate_config(file, "a.yaml");
  return parse_recipe(recipe, "r.yaml", overrides, &config);
}

std::string refusal_of_file(const std::string& file) {
  try {
    (void)under(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    return error.what();
  }
  return "nothing was refused";
}

std::string all_notes(const Recipe& recipe) {
  std::string text;
  for (const std::string& note : recipe.notes) text += note + "\n";
  return text;
}

nlohmann::json value_of(const Recipe& recipe, const std::string& key) {
  std::string path = "/" + key;
  std::replace(path.begin(), path.end(), '.', '/');
  return to_json(recipe).at(nlohmann::json::json_pointer(path));
}

// A file with this key and the keys that every file has.
std::string file_with(const AccelerateKey& key, const std::string& name, const std::string& value) {
  std::string entry = name + ": " + value + "\n";
  if (key.name == "distributed_type") return entry;
  std::string file = "distributed_type: FSDP\n";
  if (key.group.empty()) return file + entry;
  const bool second = key.version == 2 || key.name == "fsdp_reshard_after_forward";
  if (key.group == "fsdp_config") {
    const std::string version = key.name == "fsdp_version" ? "" : second ? "2" : "1";
    file += "fsdp_config:\n  " + (version.empty() ? "" : "fsdp_version: " + version + "\n  ");
    return file + entry;
  }
  return file + key.group + ":\n  " + entry;
}

TEST(AccelerateConfig, EveryRowAcceptsAndRefusesItsValues) {
  std::size_t values = 0;
  for (const AccelerateKey& key : accelerate_keys()) {
    ASSERT_FALSE(key.taken.empty()) << key.name;
    for (const AccelerateExample& example : key.taken) {
      const std::string file = file_with(key, key.name, example.value);
      ++values;
      ASSERT_NO_THROW({
        const Recipe recipe = under(file);
        if (example.result.empty()) continue;
        EXPECT_EQ(value_of(recipe, key.becomes).dump(), example.result) << file;
      }) << file;
    }
    for (const std::string& value : key.refused) {
      const std::string text = refusal_of_file(file_with(key, key.name, value));
      EXPECT_NE(text.find("a.yaml:"), std::string::npos)
          << key.name << ": " << value << ": " << text;
    }
  }
  EXPECT_GT(values, 90u);
}

TEST(AccelerateConfig, EveryOtherNameIsAcceptedWithAWarning) {
  for (const AccelerateKey& key : accelerate_keys()) {
    for (const std::string& alias : key.aliases) {
      if (key.elsewhere) continue;
      const Recipe recipe = under(file_with(key, alias, key.taken.front().value));
      if (key.taken.front().value == "null") continue;
      EXPECT_NE(all_notes(recipe).find("warning: a.yaml:"), std::string::npos) << alias;
      EXPECT_NE(all_notes(recipe).find(alias + " is another name for " + key.name),
                std::string::npos)
          << all_notes(recipe);
    }
  }
}

TEST(AccelerateConfig, TheExampleFile) {
  const AccelerateConfig config =
      read_accelerate_config(source_file("tests/cli/fixtures/accelerate/seed.yaml"));
  EXPECT_EQ(config.processes, 2);
  const Recipe recipe = parse_recipe(minimal, "r.yaml", {}, &config);
  EXPECT_EQ(recipe.sharding.sharding_strategy, Strategy::full_shard);
  EXPECT_EQ(recipe.sharding.mixed_precision, MixedPrecision::bf16);
  EXPECT_EQ(recipe.sharding.backward_prefetch, BackwardPrefetch::pre);
  EXPECT_TRUE(recipe.sharding.offload_params);
  EXPECT_FALSE(recipe.sharding.forward_prefetch);
  EXPECT_EQ(recipe.sharding.transformer_layer_cls_to_wrap, std::vector<std::string>{"BertLayer"});
  EXPECT_EQ(recipe.checkpoint.state_dict_type, checkpoint::StateDictType::sharded);
  ASSERT_EQ(recipe.notes.size(), 2u) << all_notes(recipe);
  EXPECT_NE(recipe.notes[0].find("seed.yaml:7: fsdp_backward_prefetch_policy is another name for "
                                 "fsdp_backward_prefetch"),
            std::string::npos)
      << recipe.notes[0];
  EXPECT_NE(
      recipe.notes[1].find("no effect here: downcast_bf16, tpu_env, tpu_use_cluster, tpu_use_sudo"),
      std::string::npos)
      << recipe.notes[1];
}

TEST(AccelerateConfig, UnknownKeysAreRefusedWithLineAndNearestName) {
  EXPECT_EQ(refusal_of_file("distributed_type: FSDP\nnum_proceses: 2\n"),
            "a.yaml:2: unknown key num_proceses; did you mean num_processes?");
  // As in Accelerate's invalid_keys.yaml.
  EXPECT_EQ(refusal_of_file("distributed_type: NO\nanother_invalid_key: a\ninvalid_key: b\n"),
            "a.yaml:2: unknown key another_invalid_key; docs/from-accelerate.md lists the keys "
            "(unknown too: invalid_key)");
  EXPECT_EQ(refusal_of_file("distributed_type: FSDP\nfsdp_config:\n  fsdp_ofload_params: true\n"),
            "a.yaml:3: unknown key fsdp_config.fsdp_ofload_params; did you mean "
            "fsdp_offload_params?");
  EXPECT_EQ(refusal_of_file("distributed_type: FSDP\nfsdp_config:\n  mixed_precision: bf16\n"),
            "a.yaml:3: unknown key fsdp_config.mixed_precision; it belongs at the top of the file");
  EXPECT_EQ(
      refusal_of_file("distributed_type: FSDP\nfsdp_backward_prefetch_policy: BACKWARD_PRE\n"),
      "a.yaml:2: unknown key fsdp_backward_prefetch_policy; it belongs into fsdp_config");
  EXPECT_EQ(refusal_of_file("num_processes: 2\n"),
            "a.yaml: distributed_type is missing; write distributed_type: FSDP, MULTI_CPU or "
            "MULTI_GPU");
  EXPECT_EQ(refusal_of_file("- 1\n").substr(0, 44), "a.yaml: an Accelerate configuration is a gro");
}

TEST(AccelerateConfig, FilesOfAnotherKindAreNamed) {
  for (const char* recipe : {"data: {train: x}", "model: {n_layer: 2}\ntrain: {steps: 1}"}) {
    EXPECT_EQ(refusal_of_file(recipe),
              "a.yaml: is a recipe, and --config-file takes a configuration of Accelerate; name it "
              "without the option, as in tessera train a.yaml");
  }
  EXPECT_NE(refusal_of_file("base_model: x/y\nsequence_len: 2048\nfsdp_config: {}\n")
                .find("a.yaml: is a configuration of axolotl"),
            std::string::npos);
  for (const char* deepspeed :
       {R"({"zero_optimization": {"stage": 3}, "train_batch_size": 8})",
        R"({"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}})"}) {
    EXPECT_NE(refusal_of_file(deepspeed).find("a.yaml: is a configuration of DeepSpeed"),
              std::string::npos)
        << refusal_of_file(deepspeed);
  }
}

TEST(AccelerateConfig, UnsupportedKeysAreRefusedWithTheWayOut) {
  EXPECT_EQ(refusal_of_file("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n"),
            "a.yaml:1: distributed_type: DEEPSPEED is not available; use distributed_type: FSDP "
            "with fsdp_sharding_strategy FULL_SHARD for ZeRO-3, SHARD_GRAD_OP for ZeRO-2 or "
            "SHARD_OPTIMIZER for ZeRO-1");
  EXPECT_EQ(
      under("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_OPTIMIZER}\n")
          .sharding.sharding_strategy,
      Strategy::shard_optimizer);
  EXPECT_EQ(refusal_of_file("distributed_type: MULTI_GPU\nmixed_precision: fp8\n"),
            "a.yaml:2: mixed_precision: fp8 is not available; use bf16, fp16 or no");
  EXPECT_NE(refusal_of_file("distributed_type: FSDP\nnum_machines: 0\n")
                .find("a.yaml:2: num_machines must be a number of nodes from 1 to 4096, got 0"),
            std::string::npos);
  EXPECT_NE(
      refusal_of_file("distributed_type: FSDP\nfsdp_config: {fsdp_reshard_after_forward: true}\n")
          .find("write fsdp_version: 2, or FULL_SHARD"),
      std::string::npos);
}

// Accelerate's own test file for SageMaker has `debug: false` in two places.
TEST(AccelerateConfig, AKeyThatStandsTwiceWithOneValueHasIt) {
  const AccelerateConfig config = parse_accelerate_config(
      "compute_environment: AMAZON_SAGEMAKER\ndebug: false\ndistributed_type: NO\n"
      "mixed_precision: fp16\ndebug: false\nuse_cpu: false\nec2_instance_type: MY_TYPE\n"
      "iam_role_name: MY_ROLE\n",
      "a.yaml");
  EXPECT_EQ(config.processes, 1);
  EXPECT_EQ(refusal_of_file("debug: false\ndistributed_type: NO\ndebug: true\n"),
            "a.yaml:3: key debug is given twice, first at a.yaml:1; keep one");
}

TEST(AccelerateConfig, VersionsHaveTheirDefaults) {
  const Recipe first = under("distributed_type: FSDP\nfsdp_config: {fsdp_version: 1}\n");
  EXPECT_EQ(first.checkpoint.state_dict_type, checkpoint::StateDictType::full);
  const Recipe second = under("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n");
  EXPECT_EQ(second.checkpoint.state_dict_type, checkpoint::StateDictType::sharded);
  EXPECT_EQ(second.sharding.sharding_strategy, Strategy::full_shard);
  // A default of the file does not override the recipe.
  const Recipe said = under("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n",
                            minimal + "checkpoint: {state_dict_type: FULL_STATE_DICT}\n");
  EXPECT_EQ(said.checkpoint.state_dict_type, checkpoint::StateDictType::full);
  EXPECT_TRUE(said.notes.empty()) << all_notes(said);
  // Without FSDP the ranks use DDP, and Accelerate ignores fsdp_config.
  const Recipe ddp =
      under("distributed_type: MULTI_GPU\nfsdp_config: {fsdp_offload_params: true}\n");
  EXPECT_EQ(ddp.sharding.sharding_strategy, Strategy::no_shard);
  EXPECT_FALSE(ddp.sharding.offload_params);
  EXPECT_NE(all_notes(ddp).find("no effect without distributed_type: FSDP: fsdp_offload_params"),
            std::string::npos);
}

TEST(AccelerateConfig, WithoutDistributionThereIsOneRank) {
  EXPECT_EQ(parse_accelerate_config("distributed_type: NO\n", "a.yaml").processes, 1);
  EXPECT_EQ(
      parse_accelerate_config("distributed_type: 'NO'\nnum_processes: 2\n", "a.yaml").processes, 2);
  EXPECT_FALSE(parse_accelerate_config("distributed_type: FSDP\n", "a.yaml").processes);
}

TEST(AccelerateConfig, KeysOfTheOtherVersionAreAcceptedWithAWarning) {
  const Recipe recipe = under(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_sharding_strategy: 2\n"
      "  fsdp_reshard_after_forward: true\n");
  EXPECT_EQ(recipe.sharding.sharding_strategy, Strategy::shard_grad_op);
  EXPECT_NE(all_notes(recipe).find("fsdp_sharding_strategy is a key of fsdp_version 1"),
            std::string::npos);
  EXPECT_NE(all_notes(recipe).find("fsdp_sharding_strategy sets this already"), std::string::npos);
  // The first version's questions write a strategy's name under the second one's key.
  const Recipe name = under(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n"
      "  fsdp_reshard_after_forward: SHARD_GRAD_OP\n");
  EXPECT_EQ(name.sharding.sharding_strategy, Strategy::shard_grad_op);
}

TEST(AccelerateConfig, TheCommandLineOverridesTheFileAndTheFileTheRecipe) {
  const std::string file = "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 2}\n";
  const std::string own = minimal + "sharding: {sharding_strategy: NO_SHARD}\n";
  const Recipe recipe = under(file, own);
  EXPECT_EQ(recipe.sharding.sharding_strategy, Strategy::shard_grad_op);
  EXPECT_EQ(all_notes(recipe),
            "a.yaml:2: fsdp_sharding_strategy: 2 overrides r.yaml:2: sharding.sharding_strategy: "
            "NO_SHARD\n");
  const Recipe set = under(file, own, {"sharding.sharding_strategy=HYBRID_SHARD"});
  EXPECT_EQ(set.sharding.sharding_strategy, Strategy::hybrid_shard);
  const std::string groups =
      "distributed_type: FSDP\nparallelism_config: {parallelism_config_dp_shard_size: 2}\n";
  EXPECT_EQ(under(groups).sharding.group_size, 2);
  EXPECT_FALSE(under(groups, minimal, {"sharding.group_size=null"}).sharding.group_size);
  // If they agree, there is no note.
  EXPECT_EQ(all_notes(under(file, minimal + "sharding: {sharding_strategy: SHARD_GRAD_OP}\n")), "");
}

TEST(AccelerateConfig, MixedPrecisionOverridesItsOldName) {
  const std::string type = "distributed_type: FSDP\n";
  for (const char* keys :
       {"mixed_precision: bf16\nfp16: true\n", "fp16: false\nmixed_precision: bf16\n"}) {
    const Recipe recipe = under(type + keys);
    EXPECT_EQ(recipe.sharding.mixed_precision, MixedPrecision::bf16) << keys;
    EXPECT_NE(all_notes(recipe).find("mixed_precision sets this already"), std::string::npos)
        << keys;
  }
  EXPECT_EQ(under(type + "fp16: true\n").sharding.mixed_precision, MixedPrecision::fp16);
}

TEST(AccelerateConfig, KeysWithoutEffectAreReported) {
  const Recipe recipe = under(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_use_orig_params: false\n"
      "  fsdp_limit_all_gathers: false\n  fsdp_sync_module_states: true\n");
  EXPECT_EQ(all_notes(recipe),
            "a.yaml:3: fsdp_use_orig_params: false: no effect: parameters always keep their names "
            "and shapes\na.yaml:4: fsdp_limit_all_gathers: false: no effect: at most two gathers "
            "are in flight\n");
}

TEST(AccelerateConfig, JsonIsReadToo) {
  const AccelerateConfig config = parse_accelerate_config(
      "{\n\t\"distributed_type\": \"FSDP\",\n\t\"num_processes\": 4,\n\t\"fsdp_config\": "
      "{\n\t\t\"fsdp_version\": 2, \"fsdp_reshard_after_forward\": false\n\t},\n"
      "\t\"deepspeed_config\": {}\n}\n",
      "a.json");
  EXPECT_EQ(config.processes, 4);
  const Recipe recipe = parse_recipe(minimal, "r.yaml", {}, &config);
  EXPECT_EQ(recipe.sharding.sharding_strategy, Strategy::shard_grad_op);
}

TEST(AccelerateConfig, ClassesBelongToTheirPolicy) {
  const Recipe recipe = under(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"
      "  fsdp_transformer_layer_cls_to_wrap: BertLayer\n");
  EXPECT_TRUE(recipe.sharding.transformer_layer_cls_to_wrap.empty());
  EXPECT_NE(all_notes(recipe).find("no effect here: fsdp_transformer_layer_cls_to_wrap"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::training
