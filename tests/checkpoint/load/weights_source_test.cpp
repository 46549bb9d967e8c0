// ts::load of only the weights from Hugging Face folders and single files, and its errors for paths
// that are neither these nor steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/classifier.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

// A folder in the form that transformers writes: the trunk's weights, in one file or two.
class WeightsFrom : public ::testing::Test {
 protected:
  WeightsFrom() {
    std::int64_t number = 0;
    for (const auto& [name, shape] :
         std::map<std::string, std::vector<std::int64_t>>{{"trunk.in.bias", {7}},
                                                          {"trunk.in.weight", {7, 6}},
                                                          {"trunk.norm.bias", {7}},
                                                          {"trunk.norm.weight", {7}}}) {
      std::vector<float>& values = values_[name];
      for (std::int64_t i = 0; i < elements_of(shape); ++i) {
        values.push_back(static_cast<float>(element(2, i, static_cast<int>(number))));
      }
      shapes_[name] = shape;
      ++number;
    }
  }
  void write(const std::string& file, const std::string& ending = "") const {
    std::vector<TensorToWrite> list;
    for (const auto& [name, values] : values_) {
      if (name.ends_with(ending)) {
        list.push_back({{name, DType::float32, shapes_.at(name)}, values.data()});
      }
    }
    write_safetensors(folder_.path() / file, list);
  }
  void write_index() const {
    nlohmann::json index;
    for (const auto& entry : values_) {
      const bool weight = entry.first.ends_with("weight");
      index["weight_map"][entry.first] = weight ? "a.safetensors" : "b.safetensors";
    }
    write_all(folder_.path() / "model.safetensors.index.json", index.dump());
  }
  void expect_loaded_from(const std::string& source) const {
    Whole loaded;
    with_new(
        3, 5,
        [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
          const std::string text = error_of([&] { (void)load(context, source, model); });
          EXPECT_TRUE(has(text, "missing model tensor 'head.weight'"));
          EXPECT_TRUE(has(text, "missing model tensor 'head.bias'"));
          LoadResult result = load(context, source, model, LoadOptions{.strict = false});
          std::sort(result.model.missing.begin(), result.model.missing.end());
          EXPECT_EQ(result.model.missing, (std::vector<std::string>{"head.bias", "head.weight"}));
          (void)load(context, source, model, LoadOptions{.model = is_trunk});
          EXPECT_TRUE(has(error_of([&] {
                            (void)load(context, source, model, optimizer,
                                       LoadOptions{.model = is_trunk});
                          }),
                          "load it without the optimizer"));
        },
        &loaded);
    for (const auto& [name, values] : values_) {
      EXPECT_EQ(loaded.values.at(name), (std::vector<double>(values.begin(), values.end())))
          << name;
    }
  }
  [[nodiscard]] std::string path() const { return folder_.path().string(); }

  TemporaryFolder folder_;
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

TEST_F(WeightsFrom, AHuggingFaceFolder) {
  write("model.safetensors");
  expect_loaded_from(path());
}

TEST_F(WeightsFrom, NumberedFilesWithAnIndex) {
  write("a.safetensors", "weight");
  write("b.safetensors", "bias");
  write_index();
  expect_loaded_from(path());
}

TEST_F(WeightsFrom, OneFile) {
  write("weights.safetensors");
  expect_loaded_from(path() + "/weights.safetensors");
}

TEST_F(WeightsFrom, NamesMappedByAFunctionWithState) {
  write("model.safetensors");
  std::vector<float> bias(7);
  std::vector<LogicalTensor> wanted{
      {"in.bias", DType::float32, {7}, {{0, 7, reinterpret_cast<std::byte*>(bias.data())}}}};
  const std::string prefix = "trunk.";
  load_hugging_face(path(), wanted, {"trunk.in.weight", "trunk.norm.weight", "trunk.norm.bias"},
                    [&](const std::string& name) { return std::vector{prefix + name}; });
  EXPECT_EQ(bias, values_.at("trunk.in.bias"));
}

// An unfinished save has such a file too.
TEST_F(WeightsFrom, AStepWithoutItsManifestIsRefused) {
  for (const char* name : {"step-7", "step-7.partial-0123456789abcdef"}) {
    const auto step = folder_.path() / name;
    std::filesystem::create_directory(step);
    write(std::string(name) + "/model.safetensors");
    with_new(2, 5, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer&) {
      for (const char* slash : {"", "/"}) {
        EXPECT_TRUE(has(error_of([&] {
                          (void)load(context, step.string() + slash, model,
                                     LoadOptions{.model = is_trunk});
                        }),
                        "its save did not finish, or it is damaged"));
      }
      (void)load(context, step / "model.safetensors", model, LoadOptions{.model = is_trunk});
    });
  }
}

TEST_F(WeightsFrom, OtherPathsAreRefusedByTheirKind) {
  const auto from = pretrained();
  write_all(folder_.path() / "model.bin", "?");
  with_new(2, 3, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& o) {
    const auto text = [&](const std::string& source) {
      return error_of([&] { (void)load(context, source, model); });
    };
    EXPECT_TRUE(has(text(path() + "/none"), "the folder does not exist"));
    EXPECT_TRUE(has(text(path()), "it holds neither steps nor model.safetensors"));
    EXPECT_TRUE(has(text(path() + "/model.bin"), "not a .safetensors file; tessera convert"));
    EXPECT_TRUE(has(text(from->dir()),
                    "a folder of steps; name one of them, such as '" + from->step() + "'"));
    State state = state_of(model, &o, Direction::load);
    context.barrier();
    if (context.is_main()) write("model.safetensors");
    context.barrier();
    EXPECT_TRUE(has(error_of([&] { (void)load(context.communicator(), path(), state); }),
                    "it is a Hugging Face folder, with weights alone"));
  });
}

}  // namespace
}  // namespace tessera::checkpoint
