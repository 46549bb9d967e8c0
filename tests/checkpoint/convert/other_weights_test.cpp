// Folders that hold weights twice: what is read is what transformers reads, and the other file is
// named.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/gguf_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

class OtherWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    write_small_model(source(), small_llama_tensors(), small_llama_config());
    convert(source(), folder_.path() / "model.pt", {.to = "torch"});
  }
  // The notes about further weights.
  std::vector<std::string> notes(const fs::path& folder) {
    fs::remove_all(folder_.path() / "out");
    std::vector<std::string> found = convert(folder, folder_.path() / "out", {.to = "full"}).notes;
    std::erase_if(found, [](const std::string& note) { return !note.starts_with("left out: "); });
    return found;
  }
  void put_torch(const fs::path& path) const { fs::copy_file(folder_.path() / "model.pt", path); }
  [[nodiscard]] fs::path source() const { return folder_.path() / "hf"; }
  TemporaryFolder folder_;
};

TEST_F(OtherWeights, BesideSafetensors) {
  EXPECT_TRUE(notes(source()).empty());
  put_torch(source() / "pytorch_model.bin");
  ASSERT_EQ(notes(source()).size(), 1u);
  EXPECT_EQ(notes(source())[0],
            "left out: \"pytorch_model.bin\", which the folder holds as well: its weights were not "
            "compared with those of \"model.safetensors\", which were read");
  write_all(source() / "tf_model.h5", "x");
  write_all(source() / "training_args.bin", "x");
  ASSERT_EQ(notes(source()).size(), 1u);
  EXPECT_TRUE(has(notes(source())[0], "\"pytorch_model.bin\" and 1 more, which"));
}

TEST_F(OtherWeights, BesideATorchFile) {
  const fs::path folder = folder_.path() / "torch";
  fs::create_directory(folder);
  put_torch(folder / "pytorch_model.bin");
  fs::copy_file(source() / "config.json", folder / "config.json");
  EXPECT_TRUE(notes(folder).empty());
  put_torch(folder / "consolidated.00.pth");
  ASSERT_EQ(notes(folder).size(), 1u);
  EXPECT_TRUE(has(notes(folder)[0], "\"consolidated.00.pth\", which the folder holds as well"));
}

TEST_F(OtherWeights, BesideADistributedCheckpoint) {
  const fs::path folder = folder_.path() / "dcp";
  convert(source(), folder, {.to = "dcp"});
  EXPECT_TRUE(notes(folder).empty());
  put_torch(folder / "pytorch_model.bin");
  ASSERT_EQ(notes(folder).size(), 1u);
  EXPECT_TRUE(has(notes(folder)[0], "with those of the checkpoint, which were read"));
}

}  // namespace
}  // namespace tessera::checkpoint
