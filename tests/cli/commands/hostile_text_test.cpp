// Names and values of somebody else's files reach a terminal as visible text only.
#include "checkpoint/steps/manifest.h"
#include "tests/cli/terminal_testing.h"
#include "tests/cli/training_testing.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::launched;
using testing::on_terminal;
using testing::run_program;
using testing::Settings;
using testing::train_arguments;
using testing::TrainingFolder;

// A title, a colour, and the rest of the line from right to left.
const std::string escapes = "\x1b]0;pwned\x07\x1b[31m\u202e";
const std::string hostile_yaml = R"("\e]0;pwned\a\e[31m\u202e")";
const std::string visible = R"(\x1b]0;pwned\x07\x1b[31m\xe2\x80\xae)";

// Output of the program that is not of its terminal: "\r" belongs to the end of a line there.
void expect_harmless(const std::string& text) {
  EXPECT_NE(text.find("pwned"), std::string::npos) << text;
  for (const char* part : {"\x1b", "\x07", "\u202e"}) {
    EXPECT_EQ(text.find(part), std::string::npos) << ::testing::PrintToString(text);
  }
}

void expect_visible(const std::string& text) {
  expect_harmless(text);
  EXPECT_NE(text.find(visible), std::string::npos) << text;
}

// A run's step 3, and a step 9 whose manifest lists a file that is missing.
class HostileRun : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::train(1, folder_.small() + Settings{{"checkpoint.dir", folder_.path("out")},
                                                 {"checkpoint.every", "3"}});
    fs::copy(folder_.path("out/step-3"), folder_.path("out/step-9"));
    checkpoint::Manifest manifest = checkpoint::read_manifest(folder_.path("out/step-9"));
    manifest.step = 9;
    manifest.files.push_back({escapes, 1, 1 << 20, {0}});
    folder_.write("out/step-9/manifest.json", checkpoint::to_text(manifest));
  }
  TrainingFolder folder_;
};

TEST_F(HostileRun, AFileOfASkippedStep) {
  const Ended generated =
      run_program({"generate", folder_.path("out"), "--prompt", "ga", "--max-new-tokens", "1"});
  EXPECT_EQ(generated.code, 0) << generated.err;
  expect_visible(generated.err);
  const Ended resumed = run_program(train_arguments(
      folder_.small() + Settings{{"checkpoint.dir", folder_.path("out")}, {"train.steps", "4"}}));
  expect_visible(resumed.err);
  const Ended verified = run_program({"verify", folder_.path("out/step-9")});
  expect_visible(verified.out + verified.err);
  const Ended inspected = run_program({"inspect", folder_.path("out/step-9")});
  expect_visible(inspected.out + inspected.err);
}

TEST_F(HostileRun, TheTextOfAModel) {
  const std::vector<std::string> arguments = {"generate", folder_.path("out/step-3"), "--prompt",
                                              escapes,    "--max-new-tokens",         "0"};
  EXPECT_EQ(run_program(arguments).out, escapes + "\n");  // a file gets every byte
  expect_visible(on_terminal(arguments).screen);
  folder_.write("prompts", escapes + "\n");
  const Ended lines = run_program({"generate", folder_.path("out/step-3"), "--prompts",
                                   folder_.path("prompts"), "--max-new-tokens", "1"});
  expect_harmless(lines.out);
  EXPECT_EQ(nlohmann::json::parse(lines.out).at("prompt"), escapes);
}

TEST_F(HostileRun, AReportOnTheTerminal) {
  const std::string step = folder_.path(escapes);
  fs::copy(folder_.path("out/step-3"), step);
  const std::vector<std::string> arguments = {"inspect", step, "--json", "/dev/stdout"};
  expect_visible(on_terminal(arguments).screen);
  ASSERT_EQ(run_program({"inspect", step, "--json", folder_.path("a.json")}).code, 0);
  EXPECT_EQ(nlohmann::json::parse(testing::read_text(folder_.path("a.json"))).at("path"), step);
}

TEST(HostileText, ARecipe) {
  const TrainingFolder folder;
  folder.write("r.yaml", "data: {train: text.txt}\ncheckpoint: {dir: " + hostile_yaml + "}\n");
  const Ended shown = run_program({"recipe", folder.path("r.yaml")});
  EXPECT_EQ(shown.code, 0) << shown.err;
  expect_harmless(shown.out);
  EXPECT_EQ(nlohmann::json::parse(shown.out).at("checkpoint").at("dir"), escapes);
  const std::string saved = folder.path(escapes);
  const Ended trained = run_program(train_arguments(
      folder.small() + Settings{{"checkpoint.dir", saved}, {"checkpoint.every", "3"}}));
  EXPECT_EQ(trained.code, 0) << trained.err;
  expect_visible(trained.err);
}

TEST(HostileText, AConfigurationOfAccelerate) {
  const TrainingFolder folder;
  folder.write("a.yaml",
               "distributed_type: FSDP\nmain_training_function: " + hostile_yaml +
                   "\nfsdp_config: {fsdp_transformer_layer_cls_to_wrap: \"A\\n  forged: x\"}\n");
  const Ended explained = run_program({"config", "explain", folder.path("a.yaml")});
  EXPECT_EQ(explained.code, 0) << explained.err;
  expect_visible(explained.out);
  EXPECT_EQ(explained.out.find("\n  forged"), std::string::npos) << explained.out;
}

TEST(HostileText, ACluster) {
  const TrainingFolder folder;
  const char* const source = std::getenv("TESSERA_SOURCE_DIR");
  std::string cluster =
      testing::read_text(fs::path(source != nullptr ? source : ".") / "clusters/h100.yaml");
  const std::string name = "name: \"H100 SXM\"";
  ASSERT_NE(cluster.find(name), std::string::npos);
  cluster.replace(cluster.find(name), name.size(), "name: " + hostile_yaml);
  folder.write("c.yaml", cluster);
  const Ended planned = run_program(
      {"plan", testing::example_recipe(), "--cluster", folder.path("c.yaml"), "--world-size", "2"});
  expect_visible(planned.out);
}

// A rank that sends the launcher what it read.
TEST(HostileText, TheErrorOfARank) {
  const std::string script =
      "import json, os\n"
      "pipe = int(os.environ['TESSERA_FAILURE_PIPE'].split(':')[0])\n"
      "text = chr(27) + ']0;pwned' + chr(7) + chr(27) + '[31m' + chr(0x202e) + chr(10) + 'forged'\n"
      "os.write(pipe, (json.dumps({'rank': 0, 'code': 3, 'message': text}) + chr(10)).encode())\n"
      "os._exit(3)\n";
  const Ended ended =
      run_program({"launch", "--nproc-per-node", "1", "--", "python3", "-c", script});
  EXPECT_EQ(ended.code, 3);
  expect_visible(ended.err);
  EXPECT_EQ(ended.err.find("\nforged"), std::string::npos) << ended.err;
}

TEST(HostileText, ANameOnTheCommandLine) {
  const Ended ended = run_program({"generate", escapes, "--prompt", "x"});
  EXPECT_NE(ended.code, 0);
  expect_visible(ended.err);
}

// A launcher that looks for a host of that name.
TEST(HostileText, ANameOfAHost) {
  const Ended ended = run_program({"launch", "--nnodes", "2", "--node-rank", "1", "--master-addr",
                                   escapes, "--rdzv-conf", "join_timeout=5", "--", "true"},
                                  {{"TESSERA_JOB_KEY", "none"}});
  EXPECT_NE(ended.code, 0);
  expect_visible(ended.err);
}

}  // namespace
}  // namespace tessera::cli
