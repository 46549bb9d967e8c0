// `tessera config`: its questions on a terminal, and the file that it writes, checks and explains.
#include <gtest/gtest.h>

#include "tests/cli/terminal_testing.h"
#include "tests/cli/training_testing.h"
#include "training/recipe/accelerate/config.h"

namespace tessera::cli {
namespace {

using namespace training;
using testing::Ended;
using testing::example_recipe;
using testing::on_terminal;
using testing::read_text;
using testing::run_program;
using testing::Session;
using testing::TemporaryFolder;

Recipe recipe_under(const std::string& file) {
  const AccelerateConfig config = read_accelerate_config(file);
  return parse_recipe("data: {train: text}", "r.yaml", {}, &config);
}

TEST(ConfigCommand, AsksOnATerminalAndWritesTheAnswers) {
  const TemporaryFolder folder;
  const std::string file = (folder / "a.yaml").string();
  // Ranks, CPU, precision, FSDP, version, strategy, offload, policy, classes, prefetch, state dict,
  // recomputation. The command repeats a question after a wrong answer.
  const Session session =
      on_terminal({"config", "--config-file", file},
                  "two\n2\nyes\nbf17\nbf16\n\n1\nhybrid_shard\nno\n\nGPT2Block\nbackward_post\n"
                  "sharded_state_dict\nyes\n");
  ASSERT_EQ(session.code, 0) << session.screen;
  EXPECT_NE(session.screen.find("a whole number from 1 to 4096"), std::string::npos);
  EXPECT_NE(session.screen.find("bf17 is none of them; did you mean bf16?"), std::string::npos);
  EXPECT_NE(session.screen.find("configuration saved at " + file), std::string::npos);
  const AccelerateConfig config = read_accelerate_config(file);
  EXPECT_EQ(config.processes, 2);
  EXPECT_EQ(config.version, 1);
  const Recipe recipe = recipe_under(file);
  EXPECT_TRUE(recipe.notes.empty());
  EXPECT_EQ(recipe.train.device, DeviceChoice::cpu);
  EXPECT_EQ(recipe.sharding.mixed_precision, MixedPrecision::bf16);
  EXPECT_EQ(recipe.sharding.sharding_strategy, Strategy::hybrid_shard);
  EXPECT_EQ(recipe.sharding.transformer_layer_cls_to_wrap, std::vector<std::string>{"GPT2Block"});
  EXPECT_EQ(recipe.sharding.backward_prefetch, BackwardPrefetch::post);
  EXPECT_EQ(recipe.checkpoint.state_dict_type, checkpoint::StateDictType::sharded);
  EXPECT_EQ(recipe.sharding.activation_checkpointing, ActivationCheckpointing::full);
}

TEST(ConfigCommand, EveryQuestionHasADefault) {
  const TemporaryFolder folder;
  const std::string file = (folder / "a.yaml").string();
  ASSERT_EQ(on_terminal({"config", "--config-file", file}, std::string(12, '\n')).code, 0);
  const std::string by_questions = read_text(file);
  const std::string other = (folder / "b.yaml").string();
  ASSERT_EQ(run_program({"config", "default", "--config-file", other}).code, 0);
  EXPECT_EQ(read_text(other), by_questions);
  EXPECT_EQ(read_accelerate_config(other).version, 2);
  // An existing file stays unless the user says otherwise.
  const Session no = on_terminal({"config", "--config-file", file}, "\n");
  EXPECT_EQ(no.code, 2);
  EXPECT_NE(no.screen.find("is not changed"), std::string::npos) << no.screen;
  EXPECT_EQ(read_text(file), by_questions);
  const Session yes = on_terminal({"config", "--config-file", file}, "yes\n3\n\n\nno\n");
  EXPECT_EQ(yes.code, 0) << yes.screen;
  EXPECT_EQ(read_accelerate_config(file).processes, 3);
  EXPECT_FALSE(read_accelerate_config(file).fsdp);
}

TEST(ConfigCommand, RefusesWhatItCannotDo) {
  const TemporaryFolder folder;
  const std::string file = (folder / "a.yaml").string();
  const Ended piped =
      run_program({"launch", "sh", "-c",
                   testing::program_path() + " config --config-file " + file + " < /dev/null"});
  EXPECT_EQ(piped.code, 2) << piped.err;
  EXPECT_FALSE(std::filesystem::exists(file));
  ASSERT_EQ(run_program({"config", "default", "--config-file", file}).code, 0);
  const Ended twice = run_program({"config", "default", "--config_file", file});
  EXPECT_EQ(twice.code, 3);
  EXPECT_EQ(twice.err,
            "tessera: error: " + file +
                " exists and is not overwritten; name another file with --config-file\n");
  // Ctrl-D in the middle.
  const std::string other = (folder / "b.yaml").string();
  const Session ended = on_terminal({"config", "--config-file", other}, "2\n\x04");
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.screen.find("nothing was written"), std::string::npos) << ended.screen;
  EXPECT_FALSE(std::filesystem::exists(other));
  const Ended wrong = run_program({"config", "chekc", file});
  EXPECT_EQ(wrong.code, 2) << wrong.out;
}

TEST(ConfigCommand, ChecksAFile) {
  const TemporaryFolder folder;
  const std::string file = (folder / "a.yaml").string();
  std::ofstream(file) << "distributed_type: FSDP\nnum_processes: 2\ntpu_env: []\nfsdp_config:\n"
                         "  fsdp_use_orig_params: false\n";
  const Ended good = run_program({"config", "check", file});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(good.out, file +
                          ":5: fsdp_use_orig_params: false: no effect: parameters always keep "
                          "their names and shapes\n" +
                          file + ": no effect here: tpu_env\n" + file + ": good\n");
  // What only the values together show is found as well.
  std::ofstream(file) << "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: NO_WRAP\n"
                         "  fsdp_activation_checkpointing: true\n";
  const Ended bad = run_program({"config", "check", file});
  EXPECT_EQ(bad.code, 3);
  EXPECT_NE(bad.err.find(file + ":4: sharding.activation_checkpointing works by units"),
            std::string::npos)
      << bad.err;
  const Ended missing = run_program({"config", "check", (folder / "none.yaml").string()});
  EXPECT_EQ(missing.code, 3);
  EXPECT_NE(
      missing.err.find("configuration " + (folder / "none.yaml").string() + " does not exist"),
      std::string::npos);
}

TEST(ConfigCommand, ExplainsAFileAndItsCosts) {
  const TemporaryFolder folder;
  const std::string file = (folder / "a.yaml").string();
  std::ofstream(file) << "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\n"
                         "debug: false\nfsdp_config:\n  fsdp_sharding_strategy: 2\n";
  const Ended alone = run_program({"config", "explain", file});
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_NE(alone.out.find("  fsdp_sharding_strategy: 2\n"
                           "      sharding.sharding_strategy: SHARD_GRAD_OP\n"),
            std::string::npos)
      << alone.out;
  // What the key does, and what its value means.
  for (const char* words :
       {"      2: SHARD_GRAD_OP: parameters, gradients and moments are sharded;",
        "      bf16: computed and sent in bf16, half of the bytes\n",
        "      FSDP: sharded, with the strategy of fsdp_config\n",
        "      no effect: Collectives are always checked"}) {
    EXPECT_NE(alone.out.find(words), std::string::npos) << words << " is not in\n" << alone.out;
  }
  EXPECT_NE(alone.out.find("checkpoint.state_dict_type: FULL_STATE_DICT"), std::string::npos);
  EXPECT_EQ(alone.out.find("a rank holds"), std::string::npos);
  const Ended costs = run_program({"config", "explain", file, example_recipe(), "--set",
                                   "train.device=cpu", "--set", "model.n_layer=2"});
  ASSERT_EQ(costs.code, 0) << costs.err;
  EXPECT_NE(costs.out.find(example_recipe() + ", 2 ranks, the CPUs of one node: a rank holds "),
            std::string::npos)
      << costs.out;
  EXPECT_NE(costs.out.find("fsdp_sharding_strategy: 2  (SHARD_GRAD_OP instead of FULL_SHARD)\n"
                           "      holds "),
            std::string::npos)
      << costs.out;
  EXPECT_NE(costs.out.find("mixed_precision: bf16  (bf16 instead of no)\n      holds "),
            std::string::npos)
      << costs.out;
}

TEST(ConfigCommand, TheDocumentHasTheTableOfKeys) {
  const char* folder = std::getenv("TESSERA_SOURCE_DIR");
  const std::string page =
      std::string(folder != nullptr ? folder : ".") + "/docs/from-accelerate.md";
  const Ended keys = run_program({"config", "--keys"});
  ASSERT_EQ(keys.code, 0) << keys.err;
  ASSERT_NE(keys.out.find("### At the top of a file"), std::string::npos) << keys.out;
  EXPECT_NE(read_text(page).find(keys.out), std::string::npos)
      << "docs/from-accelerate.md does not have what `tessera config --keys` prints";
}

}  // namespace
}  // namespace tessera::cli
