// PEFT folders: valid configurations, and weights with the adapter merged in.
#include "checkpoint/load/peft.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/convert/convert.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using nlohmann::json;

// A layer "l" [3, 2] and a table, and an adapter of rank 1 for the layer.
class Peft : public ::testing::Test {
 protected:
  Peft() {
    fs::create_directories(base());
    fs::create_directories(adapter());
    write_tensors(base() / "model.safetensors",
                  {{"net.l.weight", {3, 2}, weight_}, {"net.t.weight", {2}, {7, 8}}});
    write_adapter("base_model.model.net.l");
    config_ = {{"peft_type", "LORA"},
               {"r", 1},
               {"lora_alpha", 3},
               {"target_modules", {"l"}},
               {"base_model_name_or_path", base().string()}};
    write_config();
  }

  struct Named {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  static void write_tensors(const fs::path& path, const std::vector<Named>& tensors) {
    std::vector<TensorToWrite> list;
    for (const Named& tensor : tensors) {
      list.push_back({{tensor.name, DType::float32, tensor.shape}, tensor.values.data()});
    }
    write_safetensors(path, list);
  }
  void write_adapter(const std::string& layer, std::int64_t in = 2) const {
    std::vector<float> a(static_cast<std::size_t>(in), 2);
    a[1] = -1;
    write_tensors(
        adapter() / peft_tensors_file,
        {{layer + ".lora_A.weight", {1, in}, a}, {layer + ".lora_B.weight", {3, 1}, {1, 10, 100}}});
  }
  void write_config() const { write_all(adapter() / peft_config_file, config_.dump()); }
  [[nodiscard]] std::string refusal() const {
    write_config();
    try {
      (void)read_peft_config(adapter());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::configuration) << error.what();
      return error.what();
    }
    return {};
  }
  [[nodiscard]] std::vector<float> merged(const ConvertOptions& options = {}) const {
    ConvertOptions chosen = options;
    chosen.to = "hf";
    chosen.merge = true;
    chosen.verify = true;
    chosen.force = true;
    convert(adapter(), folder_.path() / "merged", chosen);
    std::vector<float> values(6);
    std::vector<LogicalTensor> tensors = {{"net.l.weight",
                                           DType::float32,
                                           {3, 2},
                                           {{0, 6, reinterpret_cast<std::byte*>(values.data())}}}};
    load_hugging_face(folder_.path() / "merged", tensors, {"net.t.weight"}, nullptr);
    return values;
  }
  [[nodiscard]] fs::path base() const { return folder_.path() / "base"; }
  [[nodiscard]] fs::path adapter() const { return folder_.path() / "adapter"; }

  TemporaryFolder folder_;
  const std::vector<float> weight_{1, 2, 3, 4, 5, 6};
  json config_;
};

TEST_F(Peft, AConfigIsReadAsItWasWritten) {
  const PeftConfig wanted{.rank = 4,
                          .alpha = 6,
                          .dropout = 0.25,
                          .rslora = true,
                          .dora = true,
                          .fan_in_fan_out = true,
                          .target_modules = {"q", "v"},
                          .modules_to_save = {"lm_head", "norm"},
                          .base = "base",
                          .task_type = "CAUSAL_LM"};
  write_all(adapter() / peft_config_file, to_text(wanted));
  const PeftConfig read = read_peft_config(adapter());
  EXPECT_EQ(read.rank, 4);
  EXPECT_DOUBLE_EQ(read.scaling_of("model.q"), 3);
  EXPECT_EQ(read.dropout, 0.25);
  EXPECT_TRUE(read.dora);
  EXPECT_TRUE(read.fan_in_fan_out);
  EXPECT_EQ(read.target_modules, wanted.target_modules);
  EXPECT_EQ(read.modules_to_save, wanted.modules_to_save);
  EXPECT_EQ(read.base, "base");
  config_["target_modules"] = ".*q";
  write_config();
  EXPECT_EQ(read_peft_config(adapter()).target_pattern, ".*q");
}

TEST_F(Peft, UnsupportedSettingsAreRefusedByName) {
  const json good = config_;
  const std::vector<std::pair<std::string, json>> cases = {
      {"peft_type", "IA3"},
      {"bias", "all"},
      {"use_dora", "yes"},
      {"use_qalora", true},
      {"modules_to_save", "lm_head"},
      {"modules_to_save", {"lm_head", 3}},
      {"modules_to_save", {""}},
      {"rank_pattern", {{"q", 0}}},
      {"rank_pattern", "q"},
      {"alpha_pattern", {{"q", "two"}}},
      {"init_lora_weights", "pissa"},
      {"r", 0},
      {"r", "eight"},
      {"r", 1e18},
      {"lora_alpha", 1e300},
      {"base_model_name_or_path", std::string("a\0b", 3)},
      {"lora_dropout", 1},
      {"target_modules", 3},
      {"lora_alpha", nullptr}};
  for (const auto& [key, value] : cases) {
    config_ = good;
    config_[key] = value;
    if (value.is_null()) {
      EXPECT_EQ(refusal(), "") << key;  // ignored, as if it were absent
    } else {
      EXPECT_NE(refusal().find("adapter_config.json: " + key + " "), std::string::npos)
          << key << ": " << refusal();
    }
  }
  config_ = good;
  config_["modules_to_save"] = nullptr;
  config_["rank_pattern"] = json::object();
  EXPECT_EQ(refusal(), "");
  write_all(adapter() / peft_config_file, "{");
  EXPECT_NE(error_of([&] { (void)read_peft_config(adapter()); }).find("adapter_config.json"),
            std::string::npos);
}

TEST_F(Peft, PatternsGiveLayersTheirRankAndAlpha) {
  config_["r"] = 8;
  config_["rank_pattern"] = {{"l", 1}, {"other.q", 4}};
  config_["alpha_pattern"] = {{".*\\.l", 5}};
  write_config();
  const PeftConfig read = read_peft_config(adapter());
  EXPECT_EQ(read.rank_of("net.l"), 1);
  EXPECT_EQ(read.rank_of("net.all"), 8);  // not an end after a dot
  EXPECT_EQ(read.rank_of("other.q"), 4);
  EXPECT_DOUBLE_EQ(read.scaling_of("net.l"), 5);
  EXPECT_DOUBLE_EQ(read.scaling_of("other.q"), 0.75);
  const PeftConfig again = [&] {
    write_all(adapter() / peft_config_file, to_text(read));
    return read_peft_config(adapter());
  }();
  EXPECT_EQ(again.rank_pattern, read.rank_pattern);
  EXPECT_EQ(again.alpha_pattern, read.alpha_pattern);
  // 5 * B A in place of 3 * B A.
  config_["base_model_name_or_path"] = base().string();
  write_config();
  EXPECT_EQ(merged(), (std::vector<float>{11, -3, 103, -46, 1005, -494}));
  const ConvertReport report =
      convert(adapter(), folder_.path() / "noted", {.to = "hf", .merge = true});
  EXPECT_EQ(report.notes.at(0).rfind("1 adapters of rank 1 merged from", 0), 0U)
      << report.notes.at(0);
  config_["rank_pattern"] = {{"l", 1}, {"net.l", 2}};
  write_config();
  EXPECT_NE(error_of([&] { (void)merged(); }, ErrorCode::configuration)
                .find("give net.l the values 1 and 2"),
            std::string::npos);
}

// Rows of W + B A of the norms 5, 10 and 26 take the magnitudes 10, 1 and -13.
TEST_F(Peft, MergedWeightsOfDoraHaveTheMagnitudesAsNorms) {
  config_["lora_alpha"] = 1;
  config_["use_dora"] = true;
  write_config();
  const auto write = [&](bool in_out, const std::vector<float>& magnitude) {
    const std::vector<float> rows{1, 5, -14, 18, -190, 124};  // 3, 4, 6, 8, 10, 24 less B A
    write_tensors(base() / "model.safetensors",
                  {{"net.l.weight",
                    {in_out ? 2 : 3, in_out ? 3 : 2},
                    in_out ? std::vector<float>{1, -14, -190, 5, 18, 124} : rows},
                   {"net.t.weight", {2}, {7, 8}}});
    const std::string layer = "base_model.model.net.l";
    write_tensors(adapter() / peft_tensors_file, {{layer + ".lora_A.weight", {1, 2}, {2, -1}},
                                                  {layer + ".lora_B.weight", {3, 1}, {1, 10, 100}},
                                                  {layer + ".lora_magnitude_vector",
                                                   {static_cast<std::int64_t>(magnitude.size())},
                                                   magnitude}});
  };
  const auto expect_near = [](const std::vector<float>& got, const std::vector<float>& wanted) {
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_NEAR(got[i], wanted[i], 1e-5 * std::fabs(wanted[i])) << i;
  };
  write(false, {10, 1, -13});
  expect_near(merged(), {6, 8, 0.6f, 0.8f, -5, -12});
  EXPECT_EQ(merged({.max_memory = 64'000'000}), merged());
  write(true, {10, 1, -13});
  convert(adapter(), folder_.path() / "lying", {.to = "hf", .merge = true});
  std::vector<float> values(6);
  std::vector<LogicalTensor> tensors = {{"net.l.weight",
                                         DType::float32,
                                         {2, 3},
                                         {{0, 6, reinterpret_cast<std::byte*>(values.data())}}}};
  load_hugging_face(folder_.path() / "lying", tensors, {"net.t.weight"}, nullptr);
  expect_near(values, {6, 0.6f, -5, 8, 0.8f, -12});
  write(false, {10, 1});
  EXPECT_NE(error_of([&] { (void)merged(); }).find("has shape [2] for a layer of 3 outputs"),
            std::string::npos);
}

// A file with magnitudes and a config without, and the other way round.
TEST_F(Peft, TheConfigSaysWhetherThereAreMagnitudes) {
  const auto refused = [&] { return error_of([&] { (void)merged(); }); };
  config_["use_dora"] = true;
  write_config();
  EXPECT_NE(refused().find("use_dora of adapter_config.json is true, but there is no magnitude "
                           "'base_model.model.net.l.lora_magnitude_vector'"),
            std::string::npos)
      << refused();
  const std::string layer = "base_model.model.net.l";
  write_tensors(adapter() / peft_tensors_file,
                {{layer + ".lora_A.weight", {1, 2}, {2, -1}},
                 {layer + ".lora_B.weight", {3, 1}, {1, 10, 100}},
                 {layer + ".lora_magnitude_vector", {3}, {1, 1, 1}}});
  config_["use_dora"] = false;
  write_config();
  EXPECT_NE(refused().find("lora_magnitude_vector' is a magnitude of DoRA, but use_dora of "
                           "adapter_config.json is false"),
            std::string::npos)
      << refused();
  EXPECT_FALSE(fs::exists(folder_.path() / "merged"));
}

TEST_F(Peft, MergedWeightsAreTheSum) {
  // 3 * B A: rows of (6, -3), (60, -30), (600, -300).
  EXPECT_EQ(merged(), (std::vector<float>{7, -1, 63, -26, 605, -294}));
  EXPECT_EQ(merged({.max_memory = 64'000'000}), merged());
}

// GPT-2 stores its weights as [in, out].
TEST_F(Peft, MergedWeightsHaveTheLayoutOfTheBase) {
  config_["fan_in_fan_out"] = true;
  write_config();
  write_tensors(base() / "model.safetensors",
                {{"net.l.weight", {2, 3}, weight_}, {"net.t.weight", {2}, {7, 8}}});
  convert(adapter(), folder_.path() / "lying", {.to = "hf", .merge = true});
  std::vector<float> values(6);
  std::vector<LogicalTensor> tensors = {{"net.l.weight",
                                         DType::float32,
                                         {2, 3},
                                         {{0, 6, reinterpret_cast<std::byte*>(values.data())}}}};
  load_hugging_face(folder_.path() / "lying", tensors, {"net.t.weight"}, nullptr);
  EXPECT_EQ(values, (std::vector<float>{7, 62, 603, 1, -25, -294}));
}

// The shape of a square weight does not show its layout. The model decides, before the adapter's
// config.
TEST_F(Peft, ASquareWeightHasTheLayoutOfItsModel) {
  const auto merged_square = [&](const ConvertOptions& options) {
    write_tensors(base() / "model.safetensors", {{"net.l.weight", {2, 2}, {0, 0, 0, 0}}});
    write_all(base() / "config.json", R"({"model_type": "net"})");
    write_tensors(adapter() / peft_tensors_file,
                  {{"base_model.model.net.l.lora_A.weight", {1, 2}, {2, -1}},
                   {"base_model.model.net.l.lora_B.weight", {2, 1}, {1, 10}}});
    ConvertOptions chosen = options;
    chosen.to = "hf";
    chosen.merge = chosen.force = true;
    convert(adapter(), folder_.path() / "square", chosen);
    std::vector<float> values(4);
    std::vector<LogicalTensor> tensors = {{"net.l.weight",
                                           DType::float32,
                                           {2, 2},
                                           {{0, 4, reinterpret_cast<std::byte*>(values.data())}}}};
    load_hugging_face(folder_.path() / "square", tensors, {}, nullptr);
    return values;
  };
  const std::vector<float> out_in{6, -3, 60, -30}, in_out{6, 60, -3, -30};
  for (const bool flag : {false, true}) {
    config_["fan_in_fan_out"] = flag;
    write_config();
    EXPECT_EQ(merged_square({}), flag ? in_out : out_in);
    for (const bool lies : {false, true}) {
      const auto of_model = [&](const std::string& config) {
        EXPECT_EQ(config, R"({"model_type": "net"})");
        return std::map<std::string, bool>{{"model.net.l.weight", lies}};
      };
      EXPECT_EQ(merged_square({.lies_in_out = of_model}), lies ? in_out : out_in);
    }
  }
}

// A shape that is not square shows the layout, whatever the config says.
TEST_F(Peft, AWrongLayoutInTheConfigIsIgnored) {
  config_["fan_in_fan_out"] = true;
  write_config();
  EXPECT_EQ(merged(), (std::vector<float>{7, -1, 63, -26, 605, -294}));
}

TEST_F(Peft, ABaseWithoutItsPrefixIsTheSameModel) {
  write_adapter("base_model.model.transformer.net.l");
  EXPECT_EQ(merged()[0], 7);
}

// The tensors of modules_to_save take the place of the base's, in the base's dtype.
TEST_F(Peft, ModulesToSaveReplaceTheBases) {
  const auto write = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                         const std::vector<float>& values) {
    write_tensors(adapter() / peft_tensors_file,
                  {{"base_model.model.net.l.lora_A.weight", {1, 2}, {2, -1}},
                   {"base_model.model.net.l.lora_B.weight", {3, 1}, {1, 10, 100}},
                   {"base_model.model." + name, shape, values}});
  };
  const auto refused = [&](ErrorCode code = ErrorCode::checkpoint) {
    return error_of([&] { (void)merged(); }, code);
  };
  write("net.t.weight", {2}, {-1.5, 9});
  EXPECT_NE(refused().find("'base_model.model.net.t.weight' is not an adapter of a linear layer; "),
            std::string::npos)
      << refused();
  config_["modules_to_save"] = {"other"};
  write_config();
  EXPECT_NE(refused().find("or of the modules_to_save of adapter_config.json"), std::string::npos)
      << refused();
  config_["modules_to_save"] = {"t"};
  write_config();
  EXPECT_EQ(merged(), (std::vector<float>{7, -1, 63, -26, 605, -294}));
  std::vector<float> table(2);
  std::vector<LogicalTensor> tensors = {
      {"net.t.weight", DType::float32, {2}, {{0, 2, reinterpret_cast<std::byte*>(table.data())}}}};
  load_hugging_face(folder_.path() / "merged", tensors, {"net.l.weight"}, nullptr);
  EXPECT_EQ(table, (std::vector<float>{-1.5, 9}));
  write("net.t.weight", {3}, {1, 2, 3});
  EXPECT_NE(refused().find("has shape [3], and the base's is [2]"), std::string::npos) << refused();
  write("net.t.bias", {2}, {1, 2});
  EXPECT_NE(refused().find("the base has no tensors of that name"), std::string::npos) << refused();
}

// PEFT trains a copy of a tied table or head, so its merged model is not tied.
TEST_F(Peft, ACopyOfATiedTableIsNotMerged) {
  write_all(base() / "config.json", R"({"model_type": "net", "tie_word_embeddings": true})");
  write_tensors(base() / "model.safetensors",
                {{"net.l.weight", {3, 2}, weight_}, {"net.wte.weight", {2}, {7, 8}}});
  config_["modules_to_save"] = {"wte", "lm_head"};
  write_config();
  for (const char* name : {"net.wte.weight", "lm_head.weight"}) {
    write_tensors(adapter() / peft_tensors_file,
                  {{"base_model.model.net.l.lora_A.weight", {1, 2}, {2, -1}},
                   {"base_model.model.net.l.lora_B.weight", {3, 1}, {1, 10, 100}},
                   {std::string("base_model.model.") + name, {2}, {1, 2}}});
    const std::string refused = error_of([&] { (void)merged(); }, ErrorCode::configuration);
    EXPECT_NE(refused.find("of its modules_to_save is a copy that is not tied"), std::string::npos)
        << refused;
  }
  EXPECT_FALSE(fs::exists(folder_.path() / "merged"));
}

TEST_F(Peft, NamesInAStepArePefts) {
  const auto names = peft_names({"head"});
  EXPECT_EQ(names("lm_head.weight", true), "base_model.model.lm_head.weight");
  EXPECT_EQ(names("lm_head.weight", false), "");
  EXPECT_EQ(names("l.lora_A.weight", true), "base_model.model.l.lora_A.weight");
  EXPECT_EQ(names("l.lora_magnitude_vector", true), "base_model.model.l.lora_magnitude_vector");
  EXPECT_EQ(names("classifier.weight", true), "classifier.weight");
}

TEST_F(Peft, AdaptersThatDoNotFitAreRefused) {
  const auto refused = [&] { return error_of([&] { (void)merged(); }); };
  write_adapter("base_model.model.net.other");
  EXPECT_NE(refused().find("the base has no tensors of that name"), std::string::npos) << refused();
  write_adapter("base_model.model.net.l", 3);
  EXPECT_NE(refused().find("is for a weight [3, 3]"), std::string::npos) << refused();
  write_adapter("elsewhere.net.l");
  EXPECT_NE(refused().find("is not an adapter of a linear layer"), std::string::npos) << refused();
  write_adapter("base_model.model.net.l");
  config_["r"] = 2;
  write_config();
  EXPECT_NE(refused().find("not of rank 2, which r and rank_pattern"), std::string::npos)
      << refused();
  EXPECT_FALSE(fs::exists(folder_.path() / "merged"));
}

}  // namespace
}  // namespace tessera::checkpoint
