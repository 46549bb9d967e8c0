// `tessera test`, and a run with the configuration file of the Accelerate example.
#include <gtest/gtest.h>

#include "tests/cli/training_testing.h"
#include "tests/support/processor_time.h"

namespace tessera::cli {
namespace {

using testing::Ended;
using testing::example_recipe;
using testing::run_program;
using testing::Settings;
using testing::TrainingFolder;

TEST(TestCommand, ProvesAnInstallationInALineACheck) {
  const double before = testing::children_processor_seconds();
  const Ended ended = run_program({"test"}, {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_EQ(ended.err, "");
  EXPECT_LT(testing::children_processor_seconds() - before, 60);
  std::size_t good = 0;
  std::istringstream stream(ended.out);
  for (std::string line; std::getline(stream, line);) good += line.starts_with("  ok ") ? 1 : 0;
  EXPECT_EQ(good, 4u) << ended.out;
  EXPECT_NE(ended.out.find("  --    no GPU: "), std::string::npos) << ended.out;
  EXPECT_TRUE(ended.out.ends_with("this installation works\n")) << ended.out;
}

TEST(TestCommand, ReportsFailedChecks) {
  const Ended ended = run_program({"test"}, {{"TESSERA_STANDSTILL_TIMEOUT", "soon"}});
  EXPECT_EQ(ended.code, 1) << ended.out;
  EXPECT_NE(ended.out.find("  FAILS 2 ranks meet"), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("TESSERA_STANDSTILL_TIMEOUT='soon'"), std::string::npos) << ended.out;
  EXPECT_TRUE(ended.out.ends_with("this installation does not work\n"));
  const Ended nowhere = run_program({"test"}, {{"TMPDIR", "/nonexistent"}});
  EXPECT_NE(nowhere.code, 0);
}

std::string seeds_file() {
  return testing::read_text(std::filesystem::path(example_recipe()).parent_path().parent_path() /
                            "tests/cli/fixtures/accelerate/seed.yaml");
}

// GPT-2 has no BertLayer, which the file names, and the program's error says so. The command line
// can name another class; the rest of the file configures the run.
TEST(AccelerateRun, TheExamplesFileConfiguresARun) {
  const TrainingFolder folder;
  folder.write("seed.yaml", seeds_file());
  const auto launched = [&](const Settings& settings) {
    std::vector<std::string> words = {"launch", "--config-file", folder.path("seed.yaml"), "--",
                                      testing::program_path()};
    for (const std::string& word : testing::train_arguments(settings)) words.push_back(word);
    return run_program(words);
  };
  const Settings settings = folder.small() + Settings{{"checkpoint.dir", folder.path("out")}};
  const Ended bert = launched(settings);
  EXPECT_EQ(bert.code, 3);
  EXPECT_NE(bert.err.find("BertLayer"), std::string::npos) << bert.err;
  const Ended ended =
      launched(settings + Settings{{"sharding.transformer_layer_cls_to_wrap", "GPT2Block"}});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find("seed.yaml:7: fsdp_backward_prefetch_policy is another name for"),
            std::string::npos)
      << ended.err;
  EXPECT_NE(ended.err.find("no effect here: downcast_bf16"), std::string::npos);
  EXPECT_NE(ended.err.find("mixed_precision: bf16 overrides"), std::string::npos) << ended.err;
  // Two ranks, and a file for each of them.
  EXPECT_TRUE(std::filesystem::exists(folder.path("out/step-3/manifest.json")));
  EXPECT_NE(testing::read_text(folder.path("out/step-3/manifest.json")).find("\"sharded\""),
            std::string::npos);
}

TEST(AccelerateRun, TrainAcceptsTheFileToo) {
  const TrainingFolder folder;
  folder.write("a.yaml",
               "distributed_type: FSDP\nnum_processes: 2\nuse_cpu: true\n"
               "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n");
  std::vector<std::string> words = testing::train_arguments(folder.small());
  words.insert(words.end(), {"--config-file", folder.path("a.yaml")});
  const Ended ended = run_program(words);
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find("num_processes: 2, and the world has 1 rank; tessera launch "
                           "--config-file FILE starts that many ranks"),
            std::string::npos)
      << ended.err;
  EXPECT_NE(ended.err.find("a.yaml:4: fsdp_reshard_after_forward: false overrides"),
            std::string::npos)
      << ended.err;
}

}  // namespace
}  // namespace tessera::cli
