// Files and folders as people have them, made by make_fixtures.py: each is read whole, or refused
// in words that are true, and nothing of it is lost without a word.
#include <gtest/gtest.h>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/known_formats.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

std::unique_ptr<formats::Source> open_found(const std::string& name) {
  const fs::path path = fixture("found/" + name);
  return formats::recognise(path).open(path);
}

std::string refusal_of_found(const std::string& name) {
  return error_of([&] { (void)open_found(name); });
}

// Either part of expected.safetensors.
FoundTensors expected_part(const std::string& part) {
  FoundTensors out = expected_tensors("found/expected.safetensors");
  std::erase_if(out, [&](const auto& tensor) { return !tensor.first.starts_with(part); });
  return out;
}

std::string notes_of_found(const std::vector<std::string>& notes) {
  std::string all;
  for (const std::string& note : notes) all += note + "\n";
  return all;
}

TEST(FoundFiles, ADictOfTensorsIsTheModelAndScalarsBesideItAreNot) {
  for (const char* name : {"tutorial.pt", "random_state.pt"}) {
    SCOPED_TRACE(name);
    const auto source = open_found(name);
    EXPECT_EQ(tensors_of(*source), expected_tensors("found/expected.safetensors"));
    EXPECT_TRUE(has(notes_of_found(source->contents().notes), "beside the model's, such as"));
  }
  for (const char* name : {"nanogpt.pt", "nested.pt"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(tensors_of(*open_found(name)), expected_part("model/"));
  }
}

TEST(FoundFiles, SeveralModelsAreRefusedByTheirNames) {
  const std::string two = refusal_of_found("encoder_decoder.pt");
  EXPECT_TRUE(has(two, "several models") && has(two, "model.encoder") && has(two, "model.decoder"))
      << two;
  const std::string gan = refusal_of_found("gan.pt");
  EXPECT_TRUE(has(gan, "\"generator_state_dict\"") && has(gan, "\"discriminator_state_dict\""))
      << gan;
}

TEST(FoundFiles, BitsThatChangeTheSignAreRefused) {
  EXPECT_TRUE(has(refusal_of_found("negative.pt"), "negative bit"));
  EXPECT_TRUE(has(refusal_of_found("negative.pt"), "resolve_neg()"));
  EXPECT_TRUE(has(refusal_of_found("conjugate.pt"), "conjugate bit"));
  EXPECT_TRUE(has(refusal_of_found("conjugate.pt"), "resolve_conj()"));
}

TEST(FoundFiles, ShardsInPlaceOfTensorsAreRefusedWithTheWayOut) {
  EXPECT_TRUE(has(refusal_of_found("dtensor.pt"), "full_state_dict=True"));
}

TEST(FoundFiles, OneRanksFlatShardIsToldFromOneRanksTensors) {
  const std::string text = refusal_of_found("local/pytorch_model_fsdp_rank0.bin");
  EXPECT_TRUE(has(text, "(LOCAL_STATE_DICT)"));
  EXPECT_TRUE(has(text, "on as many ranks, and save again with SHARDED_STATE_DICT"));
  EXPECT_FALSE(has(text, "get_model_state_dict"));
}

// With the optimizer's folder beside them, which is a readable checkpoint by itself.
TEST(FoundFiles, FlatShardsAreNotPassedOver) {
  const TemporaryFolder folder;
  fs::copy(fixture("found/local"), folder.path() / "local");
  const auto refusal = [&] {
    return error_of(
        [&] { (void)formats::recognise(folder.path() / "local").open(folder.path() / "local"); });
  };
  EXPECT_TRUE(has(refusal(), "LOCAL_STATE_DICT"));
  fs::copy(fixture("accelerate/optimizer_0"), folder.path() / "local/optimizer_0");
  EXPECT_TRUE(has(refusal(), "pytorch_model_fsdp_rank0.bin"));
  EXPECT_TRUE(has(refusal(), "FULL_STATE_DICT"));
  // The folder of the optimizer alone has no weights to convert.
  fs::remove(folder.path() / "local/pytorch_model_fsdp_rank0.bin");
  fs::remove(folder.path() / "local/pytorch_model_fsdp_rank1.bin");
  for (const char* format : {"full", "torch", "hf"}) {
    const std::string text = error_of(
        [&] { (void)convert(folder.path() / "local", folder.path() / "out", {.to = format}); });
    EXPECT_TRUE(has(text, "no weights to convert, but")) << text;
    EXPECT_FALSE(fs::exists(folder.path() / "out"));
  }
}

TEST(FoundFiles, StateBesideTheWeightsIsTakenOrRefused) {
  const TemporaryFolder folder;
  for (const auto& [name, file] :
       {std::pair{"save_state", "optimizer.bin"}, std::pair{"trainer", "optimizer.pt"}}) {
    SCOPED_TRACE(name);
    const fs::path from = fixture(std::string("found/") + name);
    const fs::path out = folder.path() / name;
    const std::string text = error_of([&] { (void)convert(from, out, {.to = "full"}); });
    EXPECT_TRUE(has(text, file) && has(text, "--weights-only")) << text;
    EXPECT_FALSE(fs::exists(out));
    EXPECT_TRUE(has(notes_of_found(convert(from, out, {.to = "hf"}).notes), file));
    const ConvertReport report =
        convert(from, folder.path() / "alone", {.to = "full", .weights_only = true, .force = true});
    EXPECT_EQ(report.tensors.size(), 2u);
  }
  // The order of pytorch_model.bin tells which parameter has which number.
  EXPECT_EQ(tensors_of(*open_found("old_trainer")), expected_tensors("found/expected.safetensors"));
}

TEST(FoundFiles, FilesOfOtherProgramsAreNamed) {
  const TemporaryFolder folder;
  const auto refusal = [&](const char* name, const std::string& contents) {
    const fs::path path = folder.path() / name;
    write_all(path, contents + std::string(100, 'x'));
    return error_of([&] { (void)formats::recognise(path); });
  };
  EXPECT_TRUE(has(refusal("model.h5", "\x89HDF\r\n\x1a\n"), "an HDF5 file"));
  EXPECT_TRUE(has(refusal("a.npy", "\x93NUMPY"), "an array of NumPy"));
  EXPECT_TRUE(has(refusal("flax_model.msgpack", ""), "msgpack"));
  EXPECT_TRUE(has(refusal("model.onnx", ""), "ONNX"));
  EXPECT_TRUE(has(refusal("data.pkl", ""), "a plain pickle"));
  EXPECT_TRUE(has(refusal("notes", ""), "not a checkpoint of a known format"));
}

TEST(FoundFiles, OtherWeightsBesideTheModelAreNamed) {
  const TemporaryFolder folder;
  fs::copy(fixture("found/trainer"), folder.path() / "two");
  fs::copy(fixture("found/trainer/model.safetensors"), folder.path() / "two/teacher.safetensors");
  const auto source = formats::recognise(folder.path() / "two").open(folder.path() / "two");
  EXPECT_TRUE(has(notes_of_found(source->contents().notes), "left out: \"teacher.safetensors\""));
}

}  // namespace
}  // namespace tessera::checkpoint
