// Folders of Accelerate's save_state with a second model or a further optimizer: nothing of them is
// passed over.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/known_formats.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

class SaveStateFolder : public ::testing::Test {
 protected:
  // A copy of a fixture.
  void take(const std::string& name) {
    fs::remove_all(path());
    fs::copy(fixture(name), path(), fs::copy_options::recursive);
  }
  void copy(const std::string& from, const std::string& to) const {
    fs::copy(path() / from, path() / to, fs::copy_options::recursive);
  }
  // A conversion to a format with optimizers needs --weights-only, and a note has the name.
  void expect_lost_on_request(const std::string& name) const {
    const auto source = formats::recognise(path()).open(path());
    std::string notes;
    for (const std::string& note : source->contents().notes) notes += note + "\n";
    EXPECT_TRUE(has(notes, "not read: \"" + name + "\", the state of another")) << notes;
    const std::string text = refusal("full");
    EXPECT_TRUE(has(text, "would be lost") && has(text, "--weights-only")) << text;
    const ConvertReport report = convert(path(), folder_.path() / "out",
                                         {.to = "full", .weights_only = true, .force = true});
    EXPECT_FALSE(report.tensors.empty());
  }
  [[nodiscard]] fs::path path() const { return folder_.path() / "state"; }
  [[nodiscard]] std::string refusal(const char* format, bool weights_only = false) const {
    return error_of([&] {
      (void)convert(path(), folder_.path() / "out",
                    {.to = format, .weights_only = weights_only, .force = true});
    });
  }
  TemporaryFolder folder_;
};

TEST_F(SaveStateFolder, ASecondModelIsRefusedByName) {
  struct Second {
    const char *fixture, *model, *second, *way_out;
  };
  for (const Second& each :
       {Second{"found/save_state", "model.safetensors", "model_1.safetensors",
               "(model.safetensors and optimizer.bin)"},
        Second{"found/old_trainer", "pytorch_model.bin", "pytorch_model_1.bin",
               "(pytorch_model.bin and optimizer.bin)"},
        Second{"accelerate_full", "pytorch_model_fsdp.bin", "pytorch_model_fsdp_1.bin",
               "(pytorch_model_fsdp.bin and optimizer.bin)"},
        Second{"accelerate", "pytorch_model_fsdp_0", "pytorch_model_fsdp_12",
               "(pytorch_model_fsdp_0 and optimizer_0)"}}) {
    SCOPED_TRACE(each.second);
    take(each.fixture);
    copy(each.model, each.second);
    for (const bool weights_only : {false, true}) {
      const std::string text = refusal("full", weights_only);
      EXPECT_TRUE(has(text, "several models") && has(text, each.second)) << text;
      EXPECT_TRUE(has(text, each.way_out)) << text;
    }
    EXPECT_TRUE(has(refusal("hf"), each.second));
    EXPECT_FALSE(fs::exists(folder_.path() / "out"));
    // The way out that the message names works.
    EXPECT_EQ(tensors_of(*formats::recognise(path() / each.second).open(path() / each.second)),
              tensors_of(*formats::recognise(path() / each.model).open(path() / each.model)));
  }
}

TEST_F(SaveStateFolder, FilesOfTheIndexAreNoFurtherModels) {
  fs::create_directory(path());
  fs::copy(fixture("found/old_trainer/pytorch_model.bin"), path() / "pytorch_model_1.bin");
  const auto source =
      formats::recognise(path() / "pytorch_model_1.bin").open(path() / "pytorch_model_1.bin");
  nlohmann::json index;
  for (const auto& tensor : source->contents().tensors) {
    index["weight_map"][tensor.name] = "pytorch_model_1.bin";
  }
  write_all(path() / "pytorch_model.bin.index.json", index.dump());
  EXPECT_EQ(tensors_of(*formats::recognise(path()).open(path())), tensors_of(*source));
}

TEST_F(SaveStateFolder, FurtherOptimizersAreLostOnlyOnRequest) {
  struct Further {
    const char *fixture, *optimizer, *further;
  };
  for (const Further& each : {Further{"found/save_state", "optimizer.bin", "optimizer_1.bin"},
                              Further{"found/old_trainer", "optimizer.pt", "optimizer_1.pt"},
                              Further{"accelerate_full", "optimizer.bin", "optimizer_1.bin"},
                              Further{"accelerate", "optimizer_0", "optimizer_1"}}) {
    SCOPED_TRACE(each.fixture);
    take(each.fixture);
    copy(each.optimizer, each.further);
    expect_lost_on_request(each.further);
  }
}

// Accelerate with use_dcp=False for the optimizer, and with FULL_STATE_DICT for it.
TEST_F(SaveStateFolder, AnOptimizerInAnotherFormThanTheWeightsIsLostOnlyOnRequest) {
  for (const char* name : {"optimizer_0_rank0.bin", "optimizer.bin"}) {
    SCOPED_TRACE(name);
    take("accelerate");
    fs::remove_all(path() / "optimizer_0");
    fs::copy(fixture("accelerate_full/optimizer.bin"), path() / name);
    expect_lost_on_request(name);
  }
}

}  // namespace
}  // namespace tessera::checkpoint
