// `tessera diff` and `tessera convert --to gguf` as a user runs them: output and exit codes.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/safetensors/safetensors.h"
#include "tests/cli/program_testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::cli {
namespace {

using testing::Ended;
using testing::read_text;
using testing::run_program;

class DiffCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const float values[4] = {1, 2, 3, 4};
    const float others[4] = {1, 2, 3, 4.5F};
    checkpoint::write_safetensors(path("a.safetensors"), {{{"w", float32, {2, 2}}, values}});
    checkpoint::write_safetensors(path("b.safetensors"), {{{"w", float32, {2, 2}}, others}});
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  tessera::testing::TemporaryFolder folder_;
};

TEST_F(DiffCommandTest, ExitCodesTellEqualDifferentAndFailed) {
  EXPECT_EQ(run_program({"diff", path("a.safetensors"), path("a.safetensors")}).code, 0);
  const Ended other = run_program({"diff", path("a.safetensors"), path("b.safetensors")});
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.out.find("w: other values, F32 [2, 2]"), std::string::npos) << other.out;
  EXPECT_NE(other.out.find("1 of 1 tensor differ, largest difference 0.5"), std::string::npos)
      << other.out;
  EXPECT_EQ(other.err, "");
  EXPECT_EQ(
      run_program({"diff", path("a.safetensors"), path("b.safetensors"), "--tolerance", "0.5"})
          .code,
      0);
  EXPECT_EQ(run_program({"diff", path("a.safetensors")}).code, 2);
  EXPECT_EQ(
      run_program({"diff", path("a.safetensors"), path("b.safetensors"), "--tolerance", "-1"}).code,
      2);
  EXPECT_EQ(run_program({"diff", path("a.safetensors"), path("none")}).code, 5);
}

TEST_F(DiffCommandTest, TheReportAsJson) {
  const Ended ended = run_program(
      {"diff", path("a.safetensors"), path("b.safetensors"), "--json", path("report.json")});
  EXPECT_EQ(ended.code, 1);
  const auto report = nlohmann::json::parse(read_text(path("report.json")));
  EXPECT_EQ(report.at("report"), "tessera-diff");
  EXPECT_EQ(report.at("different"), 1);
  EXPECT_EQ(report.at("tensors").at(0).at("name"), "w");
  EXPECT_EQ(report.at("tensors").at(0).at("largest"), 0.5);
}

TEST_F(DiffCommandTest, AGgufFileNeedsAModel) {
  const Ended ended =
      run_program({"convert", path("a.safetensors"), path("m.gguf"), "--to", "gguf"});
  EXPECT_EQ(ended.code, 5);
  EXPECT_NE(ended.err.find("put the model's config.json beside the weights"), std::string::npos)
      << ended.err;
  const Ended unknown = run_program(
      {"convert", path("a.safetensors"), path("m.gguf"), "--to", "hf", "--type", "q8_0"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("use --dtype"), std::string::npos) << unknown.err;
}

}  // namespace
}  // namespace tessera::cli
