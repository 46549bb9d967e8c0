// Texts from a file are printed to a terminal without control characters, in notes and in errors.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/io/checksum.h"
#include "checkpoint/steps/manifest.h"
#include "tests/cli/training_testing.h"

namespace tessera::testing {
namespace {

// Gives a step's manifest a type with control characters that set a window title and ring the bell,
// and a matching checksum.
void forge(const std::string& path) {
  nlohmann::json whole = nlohmann::json::parse(read_text(path));
  whole["manifest"]["type"] = "\x1b]0;owned\x07";
  whole["xxh3"] = checkpoint::to_hex(checkpoint::checksum(whole["manifest"].dump()));
  std::ofstream(path) << whole.dump(1);
}

class Notes : public ::testing::Test {
 protected:
  Notes() {
    const Settings saving = folder_.small() + Settings{{"train.steps", "2"},
                                                       {"checkpoint.dir", folder_.path("out")},
                                                       {"checkpoint.every", "1"},
                                                       {"checkpoint.keep", "2"}};
    train(1, saving);
    forge(folder_.path("out/step-2/manifest.json"));
    settings_ = saving + Settings{{"train.steps", "3"}};
  }

  static void expect_note(const Ended& ended, const std::string& program) {
    EXPECT_EQ(ended.err.find_first_of("\x1b\x07"), std::string::npos) << program << ended.err;
    EXPECT_NE(ended.err.find("passed over"), std::string::npos) << program << ended.err;
    EXPECT_NE(ended.err.find("type '\\x1b]0;owned\\x07' is neither"), std::string::npos)
        << program << ended.err;
  }

  TrainingFolder folder_;
  Settings settings_;
};

TEST_F(Notes, OfTrainAreEscaped) {
  const Ended ended = run_program(train_arguments(settings_));
  EXPECT_EQ(ended.code, 0) << ended.err;
  expect_note(ended, "train");
}

TEST_F(Notes, OfGenerateAreEscaped) {
  const Ended ended =
      run_program({"generate", folder_.path("out"), "--prompt", "a", "--max-new-tokens", "2"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  expect_note(ended, "generate");
}

TEST_F(Notes, OfEncodeAreEscaped) {  // the model is then refused: it is not an encoder
  folder_.write("sentences.txt", "one\n");
  expect_note(run_program({"encode", folder_.path("out"), "--input", folder_.path("sentences.txt"),
                           "--out", folder_.path("e.npy")}),
              "encode");
}

}  // namespace
}  // namespace tessera::testing
