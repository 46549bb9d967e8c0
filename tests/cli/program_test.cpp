// The program's front end: options, exit codes, one line per error, output to pipes and full disks.
#include "cli/program.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/text/nearest.h"
#include "cli/subcommands.h"
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
  for (const char* hidden : {"--standalone", "--start-method", "--redirects"}) {
    EXPECT_EQ(launch.out().find(hidden), std::string::npos) << hidden << " has no effect";
  }
}

TEST(Program, HelpAndVersionAreSubcommandsToo) {
  const auto out_of = [](const std::vector<std::string>& arguments) {
    Program program(arguments);
    EXPECT_EQ(program.wait(), 0) << program.err();
    return program.out();
  };
  EXPECT_EQ(out_of({"help"}), out_of({"--help"}));
  EXPECT_EQ(out_of({"help", "train"}), out_of({"train", "--help"}));
  EXPECT_EQ(out_of({"help", "config", "check"}), out_of({"config", "check", "--help"}));
  EXPECT_EQ(out_of({"version"}), out_of({"--version"}));
  Program unknown({"help", "lanch"});
  EXPECT_EQ(unknown.wait(), 2);
  EXPECT_EQ(unknown.err(),
            "tessera: error: unknown subcommand lanch; did you mean launch? (tessera --help lists "
            "them)\n");
}

TEST(Program, HelpRefusesWordsThatAreNoSubcommand) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"help", "config", "nope"}, "unknown subcommand nope (tessera config --help lists them)"},
      {{"help", "config", "chek"},
       "unknown subcommand chek; did you mean check? (tessera config --help lists them)"},
      {{"help", "train", "plan"}, "unknown argument plan: tessera train has no subcommands"}};
  for (const auto& [words, message] : cases) {
    Program program(words);
    EXPECT_EQ(program.wait(), 2);
    EXPECT_EQ(program.err(), "tessera: error: " + message + "\n");
    EXPECT_EQ(program.out(), "");
  }
  Program own({"help", "--help"});
  EXPECT_EQ(own.wait(), 0);
  EXPECT_NE(own.out().find("subcommand SUBCOMMAND"), std::string::npos) << own.out();
}

TEST(Program, WordsOfOtherToolsAreAnswered) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"train", "n.yaml", "train.steps=5"}, "a key is set by --set train.steps=5"},
      {{"train", "n.yaml", "--devices", "2"},
       "it is an option of tessera launch: tessera launch --nproc-per-node ... -- tessera ..."},
      {{"train", "n.yaml", "--nproc_per_node=2"}, "it is an option of tessera launch"},
      {{"train", "n.yaml", "--mixed_precision", "bf16"},
       "it is a key of the recipe: --set sharding.mixed_precision=VALUE"},
      {{"generate", "m", "--max_length", "5"}, "it is --max-new-tokens here"},
      {{"generate", "m", "--prompt", "a", "--dtype", "fp8"}, "must be one of fp32, bf16"},
      {{"plan", "n.yaml", "--json", ""}, "--json: must not be empty"},
      {{"inspect", ""}, "path: must not be empty"},
      {{"launch", "-np", "2", "--", "true"}, "unknown option -np; it is --nproc-per-node here"},
      {{"launch", "-n", "2", "--", "true"}, "it is --nproc-per-node here"},
      {{"launch", "--use_fsdp", "--", "true"}, "the recipe's section `sharding`"},
      {{"launch", "--multi_gpu", "--", "true"}, "--nproc-per-node says how many ranks"},
      {{"launch", "--mixed_precision", "bf16", "--", "true"},
       "--set sharding.mixed_precision=bf16"},
      {{"launch", "--", "n.yaml"}, "is a recipe, not a program; write tessera train n.yaml"},
  };
  for (const auto& [words, message] : cases) {
    Program program(words);
    EXPECT_EQ(program.wait(), 2) << message;
    const std::string said = program.err();
    EXPECT_NE(said.find(message), std::string::npos) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
}

// The example is a command line of its subcommand, with options that the help lists.
TEST(Program, EveryHelpHasAnExample) {
  std::vector<std::vector<std::string>> commands = {
      {"config", "default"}, {"config", "check"}, {"config", "explain"}};
  for (const Subcommand& subcommand : subcommands()) commands.push_back({subcommand.name});
  for (std::vector<std::string> command : commands) {
    std::string name = "tessera";
    for (const std::string& word : command) name += " " + word;
    command.emplace_back("--help");
    Program program(command);
    ASSERT_EQ(program.wait(), 0) << name;
    const std::string help = program.out();
    const std::size_t begin = help.find("Example:\n  " + name);
    ASSERT_NE(begin, std::string::npos) << help;
    std::istringstream example(help.substr(begin));
    for (std::string word; example >> word && word != "--";) {
      if (!word.starts_with("--")) continue;
      EXPECT_NE(help.substr(0, begin).find(word), std::string::npos) << name << ": " << word;
    }
  }
}

TEST(Program, OptionsOfOtherToolsAndKeysAreAnswered) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"launch", "--num-gpus", "2", "--", "true"},
       "unknown option --num-gpus; it is --nproc-per-node here"},
      {{"train", "r.yaml", "--learning_rate", "1e-4"},
       "unknown option --learning-rate; it is a key of the recipe: --set train.lr=VALUE"},
      {{"train", "r.yaml", "--lr=1e-4"},
       "unknown option --lr; it is a key of the recipe: --set train.lr=VALUE"},
      {{"train", "r.yaml", "--config", "x"},
       "unknown option --config; the recipe is an argument without an option"},
      {{"plan", "r.yaml", "--strategy", "ddp"}, "ddp: there are all, none, dp, NO_SHARD"},
      {{"plan", "r.yaml", "--strategy", "ddp"}, "; it is NO_SHARD here"},
      {{"evaluate", "x", "--data", "x", "--sharding-strategy", "fsdp"}, "; it is FULL_SHARD here"},
      {{"bench", "r.yaml", "--strategies", "none,ddp"}, "; it is NO_SHARD here"},
      {{"bench", "r.yaml", "--strategies", "ZeRO-3"}, "; it is FULL_SHARD here"},
  };
  const TemporaryFolder folder;
  std::ofstream(folder / "r.yaml") << "data: {train: x}\n";
  for (auto [arguments, expected] : cases) {
    for (std::string& word : arguments) {
      if (word == "r.yaml") word = (folder / "r.yaml").string();
    }
    Program program(arguments);
    EXPECT_EQ(program.wait(), 2) << expected;
    EXPECT_NE(program.err().find(expected), std::string::npos) << program.err();
  }
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
       "--nnodes 2: give --master-addr, node 0's name or address"},
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

TEST(Program, HyphenAndUnderscoreAreEquivalent) {
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

TEST(Program, AForeignDescriptorIsNotWrittenTo) {
  Program program({"recipe", "/nonexistent.yaml"}, {{"TESSERA_FAILURE_PIPE", "1:12345"}});
  EXPECT_EQ(program.wait(), 3);
  EXPECT_EQ(program.out(), "");
  EXPECT_EQ(program.err(), "tessera: error: recipe /nonexistent.yaml does not exist\n");
}

TEST(Program, AReaderThatLeavesIsNotAnErrorButAFullDiskIs) {
  const TemporaryFolder folder;
  const std::string errors = (folder / "errors").string();
  const std::string program = testing::program_path();
  // Pipes whose reader has ended before the first byte.
  const std::string closed = program + " recipe --keys 2> " + errors + " | true; cat " + errors;
  FILE* pipe = ::popen(closed.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char text[256] = {};
  EXPECT_EQ(std::fread(text, 1, sizeof text - 1, pipe), 0u) << text;
  ::pclose(pipe);
  const int full = std::system((program + " recipe --keys > /dev/full 2> " + errors).c_str());
  EXPECT_EQ(WEXITSTATUS(full), 5);
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
  // Whatever this build and machine have, an unusable part has a reason.
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

TEST(Nearest, FindsTheIntendedName) {
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
