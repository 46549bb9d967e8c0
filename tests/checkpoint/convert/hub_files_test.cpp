// Model cards and generation_config.json of conversions to Hugging Face folders: made where the
// source has none, kept where it has one, and never written over somebody's text.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/convert/convert.h"
#include "checkpoint/convert/hub_files.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using nlohmann::json;

class HubFiles : public ::testing::Test {
 protected:
  [[nodiscard]] fs::path operator/(const std::string& name) const { return folder_.path() / name; }

  fs::path write_source(const std::map<std::string, std::string>& files = {}) {
    const fs::path folder = *this / "source";
    fs::create_directories(folder);
    const std::vector<float> values{1, 2, 3, 4, 5, 6};
    write_safetensors(folder / "model.safetensors",
                      {{{"a.weight", DType::float32, {2, 3}}, values.data()}});
    write_all(folder / "config.json", config_.dump());
    for (const auto& [name, text] : files) write_all(folder / name, text);
    return folder;
  }
  ConvertReport to_hub(const fs::path& from, ConvertOptions options = {}) {
    options.to = "hf";
    return convert(from, *this / "out", options);
  }
  [[nodiscard]] std::string card() const { return read_all(*this / "out/README.md"); }

  json config_{{"model_type", "llama"},
               {"architectures", {"LlamaForCausalLM"}},
               {"bos_token_id", 1},
               {"eos_token_id", {2, 7}},
               {"pad_token_id", nullptr}};

 private:
  TemporaryFolder folder_;
};

TEST_F(HubFiles, AreMadeWhereTheSourceHasNone) {
  to_hub(write_source());
  EXPECT_EQ(json::parse(read_all(*this / "out/generation_config.json")),
            json({{"_from_model_config", true}, {"bos_token_id", 1}, {"eos_token_id", {2, 7}}}));
  EXPECT_TRUE(
      card().starts_with("---\nlicense: unknown\nbase_model: \"source\"\n"
                         "library_name: transformers\npipeline_tag: text-generation\n"
                         "tags:\n- tessera\n- \"llama\"\n---\n"))
      << card();
  EXPECT_TRUE(has(card(), "A model of type `llama` with 6 parameters, converted by Tessera"));
  EXPECT_TRUE(is_written_card(card()));
  EXPECT_FALSE(is_written_card(card() + "more\n"));
}

TEST_F(HubFiles, OfARunHaveItsRecipeAndItsBase) {
  const auto base_of = [&](const std::string& pretrained) {
    fs::remove_all(*this / "out");
    to_hub(write_source({{"recipe.json", json{{"model", {{"pretrained", pretrained}}}}.dump()}}));
    const std::string text = card();
    const std::size_t at = text.find("base_model: \"");
    return at == std::string::npos ? "" : text.substr(at + 13, text.find('"', at + 13) - at - 13);
  };
  EXPECT_EQ(base_of("org/name"), "org/name");
  EXPECT_EQ(base_of("/models/secret/llama/"), "llama");
  EXPECT_TRUE(has(card(), "\"pretrained\": \"llama\"")) << card();
  EXPECT_FALSE(has(card(), "secret")) << card();
  EXPECT_EQ(base_of("/c/hub/models--org--a--b/snapshots/123"), "org/a--b");
  EXPECT_TRUE(has(card(), "## Recipe\n\n```json\n{\n  \"model\": {"));
  EXPECT_EQ(base_of(""), "");
}

TEST_F(HubFiles, OfTheSourceAreKept) {
  const std::string text = "---\nlicense: mit\n---\nMine.\n";
  const fs::path source =
      write_source({{"README.md", text}, {"generation_config.json", R"({"top_k": 5})"}});
  to_hub(source);
  EXPECT_EQ(card(), text);
  EXPECT_EQ(read_all(*this / "out/generation_config.json"), R"({"top_k": 5})");
  ConvertOptions options;
  options.to = "full";
  convert(source, *this / "full", options);
  EXPECT_FALSE(fs::exists(*this / "full/README.md"));
}

TEST_F(HubFiles, ALargeCardOfTheSourceIsKept) {
  const std::string text = "Mine.\n" + std::string(std::size_t{1} << 20, 'x');
  to_hub(write_source({{"README.md", text}}));
  EXPECT_TRUE(card() == text);
}

TEST_F(HubFiles, OfAMeanTakeOverTheLicenceAlone) {
  const fs::path source =
      write_source({{"README.md",
                     "---\nlicense: other\nlicense_name: a-b\nlicense_link: \"$(x)\"\ntags: [x]\n"
                     "---\nMine.\n"}});
  ConvertOptions options;
  options.average = {source};
  to_hub(source, options);
  EXPECT_TRUE(card().starts_with("---\nlicense: other\nlicense_name: a-b\nbase_model: ")) << card();
  EXPECT_TRUE(has(card(), "the mean of 2 checkpoints"));
  EXPECT_FALSE(has(card(), "Mine."));
  fs::remove_all(*this / "out");
  write_source(
      {{"README.md", "---\r\nlicense: \"mit\"\r\nlicense_name: 'a\"\r\n---\r\nMine.\r\n"}});
  to_hub(source, options);
  EXPECT_TRUE(card().starts_with("---\nlicense: \"mit\"\nbase_model: ")) << card();
}

TEST_F(HubFiles, AreNotWrittenOverATextOfSomebody) {
  const fs::path source = write_source();
  ConvertOptions options;
  options.force = true;
  to_hub(source);
  to_hub(source, options);  // an own card
  const std::string edited = card() + "Mine.\n";
  write_all(*this / "out/README.md", edited);
  EXPECT_TRUE(has(error_of([&] { to_hub(source, options); }), "holds 'README.md'"));
  EXPECT_EQ(card(), edited);
  write_source({{"README.md", edited}});  // the same as in the target
  to_hub(source, options);
  EXPECT_EQ(card(), edited);
}

TEST_F(HubFiles, OnlyOfModelsWithAType) {
  config_ = json::object();
  to_hub(write_source());
  EXPECT_FALSE(fs::exists(*this / "out/README.md"));
  EXPECT_FALSE(fs::exists(*this / "out/generation_config.json"));
  fs::remove_all(*this / "out");
  config_ = {{"model_type", "bert"}, {"architectures", {"BertModel"}}};
  to_hub(write_source());
  EXPECT_TRUE(fs::exists(*this / "out/README.md"));
  EXPECT_FALSE(fs::exists(*this / "out/generation_config.json"));
}

TEST_F(HubFiles, HostileTextsOfTheSourceStayTexts) {
  config_["model_type"] = "a\"\n- b: c";
  write_source({{"recipe.json", "[not JSON"}, {"README.md", std::string(3, '\xff')}});
  ConvertOptions options;
  options.average = {*this / "source"};
  to_hub(*this / "source", options);
  EXPECT_TRUE(has(card(), "- \"a\\\"\\n- b: c\"\n---\n")) << card();
  fs::remove_all(*this / "out");
  const std::size_t depth = 400'000;
  write_source(
      {{"recipe.json", R"({"a": )" + std::string(depth, '[') + std::string(depth, ']') + "}"}});
  to_hub(*this / "source");
}

}  // namespace
}  // namespace tessera::checkpoint
