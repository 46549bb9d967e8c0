// DeepSpeed's universal checkpoints: read as its stages leave them, written and read again, and
// refused with the name of what is missing. make_fixtures.py makes the fixtures.
#include <gtest/gtest.h>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/deepspeed/universal.h"
#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/formats/torch/state_names.h"
#include "checkpoint/state/scalars_json.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::PickleWriter;

class UniversalFolder : public ::testing::TestWithParam<int> {
 protected:
  UniversalFolder() { fs::copy(fixture(name()), path(), fs::copy_options::recursive); }
  [[nodiscard]] static std::string name() { return "universal" + std::to_string(GetParam()); }
  [[nodiscard]] fs::path path() const { return folder_.path() / "saved"; }
  [[nodiscard]] fs::path tensors() const { return path() / "global_step4_universal/zero"; }
  [[nodiscard]] std::string refusal() const {
    return error_of([&] { (void)formats::recognise(path()).open(path()); });
  }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Stages, UniversalFolder, ::testing::Values(2, 3));

TEST_P(UniversalFolder, IsReadWithMomentsBuffersAndFrozenParameters) {
  for (const fs::path& each : {path(), path() / "global_step4_universal"}) {
    const formats::Format& format = formats::recognise(each);
    EXPECT_STREQ(format.name, "universal");
    const auto source = format.open(each);
    expect_equal(tensors_of(*source, 3), expected_tensors(name() + ".safetensors"));
    const formats::Contents& contents = source->contents();
    EXPECT_EQ(contents.scalars.get<std::int64_t>("step"), 4);
    EXPECT_EQ(contents.aliases.at("tied.weight"), "embed.weight");
    EXPECT_EQ(json_of(contents.scalars)["param_groups"][1]["lr"], 0.02);
    EXPECT_EQ(json_of(contents.scalars)["param_groups"][1]["params"][0], "norm.bias");
    EXPECT_EQ(source->verify(nullptr), std::vector<std::string>{});
  }
}

TEST_P(UniversalFolder, IsWrittenAndReadAgain) {
  const fs::path out = folder_.path() / "out";
  (void)convert(path(), out, {.to = "universal", .verify = true});
  EXPECT_STREQ(formats::recognise(out).name, "universal");
  const auto before = formats::recognise(path()).open(path());
  for (int round = 0; round < 2; ++round) {
    const auto again = formats::recognise(out).open(out);
    expect_equal(tensors_of(*again), expected_tensors(name() + ".safetensors"));
    EXPECT_EQ(again->contents().aliases, before->contents().aliases);
    EXPECT_EQ(again->contents().scalars.get<std::int64_t>("step"), 4);
    EXPECT_EQ(json_of(again->contents().scalars)["param_groups"][1]["lr"], 0.02);
    // A checkpoint that a conversion wrote may be replaced by one.
    (void)convert(path(), out, {.to = "universal", .force = true});
  }
  write_all(out / "global_step4/zero/notes.txt", "mine");
  EXPECT_TRUE(has(error_of([&] { (void)convert(path(), out, {.to = "universal", .force = true}); }),
                  "notes.txt"));
}

TEST_P(UniversalFolder, MissingFilesAreNamed) {
  const auto without = [&](const char* file) {
    const fs::path away = folder_.path() / "away";
    fs::rename(tensors() / file, away);
    const std::string text = refusal();
    fs::rename(away, tensors() / file);
    return text;
  };
  EXPECT_TRUE(has(without("embed.weight/fp32.pt"), "\"embed.weight\" has no fp32.pt"));
  EXPECT_TRUE(has(without("norm.bias"), "\"norm.bias\" has no folder"));
  write_all(path() / formats::universal_latest_name, "global_step9_universal");
  EXPECT_TRUE(has(refusal(), "global_step9_universal' does not exist")) << refusal();
  write_all(path() / formats::universal_latest_name, "global_step4_universal");
  const fs::path model =
      tensors().parent_path() /
      (GetParam() == 3 ? formats::universal_stage_3_model_name : formats::universal_model_name);
  fs::remove(model);
  EXPECT_TRUE(has(refusal(), "no model_states.pt"));
}

TEST_P(UniversalFolder, AMomentOfOneParameterIsNotLostWithoutAWord) {
  const auto notes = [&] {
    std::string all;
    const auto source = formats::recognise(path()).open(path());
    for (const std::string& note : source->contents().notes) all += note + "\n";
    return all;
  };
  EXPECT_FALSE(has(notes(), "moments of"));
  fs::remove(tensors() / "embed.weight/exp_avg.pt");
  EXPECT_TRUE(
      has(notes(),
          "moments of 1 parameter are not there, and others have them (\"embed.weight\" has no "
          "exp_avg.pt)"))
      << notes();
}

TEST_P(UniversalFolder, ShapesMustAgree) {
  fs::copy_file(tensors() / "head.weight/fp32.pt", tensors() / "embed.weight/exp_avg.pt",
                fs::copy_options::overwrite_existing);
  EXPECT_TRUE(has(refusal(), "embed.weight/exp_avg.pt' has the shape [")) << refusal();
}

TEST_P(UniversalFolder, EveryTruncationIsRefused) {
  for (const char* file : {"embed.weight/exp_avg.pt", "optimizer_state.pt"}) {
    const std::string whole = read_all(tensors() / file);
    for (std::size_t keep = 0; keep < whole.size(); keep += 173) {
      write_all(tensors() / file, whole.substr(0, keep));
      EXPECT_TRUE(has(refusal(), file)) << keep;
    }
    write_all(tensors() / file, whole);
  }
}

TEST_P(UniversalFolder, StepsAreOfEachParameter) {
  const auto with_step = [&](double step) {
    PickleWriter pickle;
    pickle.real(step);
    const fs::path path = tensors() / "norm.bias/step.pt";
    fs::remove(path);
    write_torch_file(path, pickle.finish());
  };
  for (const double wrong : {-1.0, 4.5, 1e16}) {
    with_step(wrong);
    EXPECT_TRUE(has(refusal(), "step of \"norm.bias\" is")) << wrong;
  }
  with_step(5);
  const auto source = formats::recognise(path()).open(path());
  const Scalars& scalars = source->contents().scalars;
  EXPECT_EQ(scalars.get<std::int64_t>("step"), 5);
  const nlohmann::json& counts = json_of(scalars).at(step_counts_key);
  EXPECT_EQ(counts.at("norm.bias"), 5);
  if (GetParam() == 2) {
    EXPECT_EQ(counts.at("head.weight"), 4);  // stage 3 has no others
  }
  // Written and read again.
  const fs::path out = folder_.path() / "out";
  (void)convert(path(), out, {.to = "universal"});
  const auto again = formats::recognise(out).open(out);
  EXPECT_EQ(json_of(again->contents().scalars).at(step_counts_key).at("norm.bias"), 5);
}

TEST(Universal, NamesThatAreNoFoldersAreRefused) {
  const TemporaryFolder folder;
  formats::Contents contents;
  formats::TensorInfo tensor;
  tensor.name = "a/b";
  tensor.stored = find_stored_dtype("F32");
  tensor.shape = {2};
  contents.tensors.push_back(tensor);
  EXPECT_TRUE(has(error_of([&] { (void)formats::create_universal(folder.path(), contents, {}); }),
                  "cannot be names of a folder"));
}

// The ordinary checkpoint of a folder that has both is the one that DeepSpeed loads by default.
TEST(Universal, AFolderWithBothIsTheOrdinaryOne) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "saved";
  fs::copy(fixture("zero2"), path, fs::copy_options::recursive);
  fs::copy(fixture("universal2"), path, fs::copy_options::recursive);
  EXPECT_STREQ(formats::recognise(path).name, "deepspeed");
  EXPECT_STREQ(formats::recognise(path / "global_step4_universal").name, "universal");
  fs::remove(path / "latest");
  EXPECT_STREQ(formats::recognise(path).name, "universal");
}

TEST(Universal, WeightsAloneAreWritten) {
  const TemporaryFolder folder;
  (void)convert(fixture("fsdp2"), folder.path() / "out", {.to = "universal", .weights_only = true});
  const auto again = formats::recognise(folder.path() / "out").open(folder.path() / "out");
  FoundTensors expected = expected_tensors("fsdp2.safetensors");
  std::erase_if(expected, [](const auto& each) { return each.first.starts_with("optimizer/"); });
  expect_equal(tensors_of(*again), expected);
}

}  // namespace
}  // namespace tessera::checkpoint
