// The program's front: options, exit codes, one line an error, output to pipes and full disks.
#include "cli/program.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/nearest.h"
#include "tests/cli/program_testing.h"

namespace tessera::cli {
namespace {

using testing::Program;
using testing::TemporaryFolder;

TEST(Program, HelpAndVersionAreAnswers) {
  Program version({"--version"});
  EXPECT_EQ(version.wait(), 0);
  EXPECT_EQ(version.out().substr(0, 8), "tessera ");
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                    {"launch", "--help"},
                                                    {"env", "-h"},
                                                    {"recipe", "--help"}}) {
    Program help(arguments);
    EXPECT_EQ(help.wait(), 0);
    EXPECT_NE(help.out().find("Usage: tessera"), std::string::npos);
    EXPECT_EQ(help.err(), "");
  }
  Program launch({"launch", "--help"});
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_NE(launch.out().find("--max-restarts"), std::string::npos);
  EXPECT_NE(launch.out().find("127.0.0.1"), std::string::npos) << "defaults are shown";
}

TEST(Program, UsageErrorsAreOneLineWithTheNearestName) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"lanch"}, "unknown subcommand lanch; did you mean launch?"},
      {{"launch", "--nproc-per-nod", "2"},
       "unknown option --nproc-per-nod; did you mean --nproc-per-node?"},
      {{"env", "--jso"}, "unknown option --jso; did you mean --json?"},
      {{"env", "extra"}, "unknown argument extra"},
      {{"launch", "--max-restarts"}, "--max-restarts"},
      {{"launch", "--max-restarts", "-1", "--", "true"}, "--max-restarts"},
      {{"launch", "--max-restarts", "99999999999999999999", "--", "true"}, "--max-restarts"},
      {{"launch", "--master-port", "70000", "--", "true"}, "--master-port"},
      {{"launch", "--nproc-per-node", "0", "--", "true"},
       "--nproc-per-node must be a number of ranks from 1"},
      {{"launch", "--nnodes", "2", "--", "true"},
       "--nnodes 2: give --master-addr, host 0's name or address"},
      {{"recipe"}, "name a recipe"},
  };
  for (const auto& [arguments, expected] : cases) {
    Program program(arguments);
    EXPECT_EQ(program.wait(), 2) << expected;
    const std::string error = program.err();
    EXPECT_EQ(error.substr(0, 16), "tessera: error: ");
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
    EXPECT_NE(error.find(expected), std::string::npos) << error;
  }
  Program nothing({});
  EXPECT_EQ(nothing.wait(), 2);
  EXPECT_NE(nothing.err().find("Usage: tessera"), std::string::npos);
}

TEST(Program, HyphenAndUnderscoreAreTheSame) {
  Program program(
      {"launch", "--nproc_per_node=1", "--max-restarts", "0", "--", "echo", "--keep_this"});
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_EQ(program.out(), "--keep_this\n");
}

TEST(Program, RanksWithoutALauncherNameThemselves) {
  Program program({"recipe", "/nonexistent.yaml"}, {{"RANK", "3"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(program.wait(), 3);
  EXPECT_EQ(program.err(), "tessera: rank 3: error: recipe /nonexistent.yaml does not exist\n");
}

TEST(Program, AStrangeDescriptorIsNotWrittenTo) {
  Program program({"recipe", "/nonexistent.yaml"}, {{"TESSERA_FAILURE_PIPE", "1:12345"}});
  EXPECT_EQ(program.wait(), 3);
  EXPECT_EQ(program.out(), "");
  EXPECT_EQ(program.err(), "tessera: error: recipe /nonexistent.yaml does not exist\n");
}

TEST(Program, AReaderThatLeavesIsNoErrorAndAFullDiskIsOne) {
  const TemporaryFolder folder;
  const std::string errors = (folder / "errors").string();
  const std::string program = testing::program_path();
  // Pipes of one reader that is gone before the first byte.
  const std::string closed = program + " recipe --keys 2> " + errors + " | true; cat " + errors;
  FILE* pipe = ::popen(closed.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char text[256] = {};
  EXPECT_EQ(std::fread(text, 1, sizeof text - 1, pipe), 0u) << text;
  ::pclose(pipe);
  const int full = std::system((program + " recipe --keys > /dev/full 2> " + errors).c_str());
  EXPECT_EQ(WEXITSTATUS(full), 1);
  EXPECT_NE(testing::read_text(errors).find("No space left on device"), std::string::npos);
}

TEST(Program, EnvironmentIsTextOrJson) {
  Program text({"env"});
  ASSERT_EQ(text.wait(), 0);
  EXPECT_NE(text.out().find("oneDNN"), std::string::npos);
  Program as_json({"env", "--json"});
  ASSERT_EQ(as_json.wait(), 0);
  const auto object = nlohmann::json::parse(as_json.out());
  EXPECT_TRUE(object["cpu"]["bf16"].is_boolean());
  EXPECT_GT(object["cpu"]["usable_cores"].get<int>(), 0);
  EXPECT_GT(object["memory"]["total_bytes"].get<std::int64_t>(), 0);
  // Whatever this build and machine have, a part that cannot be used says why.
  const auto& cuda = object["parts"]["CUDA"];
  EXPECT_EQ(object["gpus"].empty(), !cuda["note"].get<std::string>().empty()) << cuda.dump();
}

TEST(Program, RecipeIsPrintedWholeAsJson) {
  const TemporaryFolder folder;
  std::ofstream(folder / "r.yaml") << "data: {train: x}\n";
  Program program(
      {"recipe", (folder / "r.yaml").string(), "--set", "train.steps=7", "--set=model.n_layer=2"});
  ASSERT_EQ(program.wait(), 0) << program.err();
  const auto object = nlohmann::json::parse(program.out());
  EXPECT_EQ(object["train"]["steps"], 7);
  EXPECT_EQ(object["model"]["n_layer"], 2);
}

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> words = {"train", "launch", "generate", "env"};
  EXPECT_EQ(nearest("trian", words), "train");
  EXPECT_EQ(nearest("Launch", words), "launch");
  EXPECT_EQ(nearest("genrate", words), "generate");
  EXPECT_EQ(nearest("xyzzy", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest(std::string(100'000, 'a'), words), "");
  EXPECT_EQ(edit_distance("ca", "ac"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
}

}  // namespace
}  // namespace tessera::cli
