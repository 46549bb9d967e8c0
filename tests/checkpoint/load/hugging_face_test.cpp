// Plain Hugging Face folders: one file, numbered files with an index, and all kinds of wrong
// indexes.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <numeric>

#include "checkpoint/load/hugging_face.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

std::vector<float> counting(std::size_t n, float first) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

void write_tensors(const fs::path& path, const std::map<std::string, std::vector<float>>& tensors) {
  std::vector<TensorToWrite> list;
  for (const auto& [name, values] : tensors) {
    list.push_back(
        {{name, DType::float32, {static_cast<std::int64_t>(values.size())}}, values.data()});
  }
  write_safetensors(path, list);
}

class HuggingFace : public ::testing::Test {
 protected:
  HuggingFace() : a_(4), b_(2) {
    tensors_ = {{"a", DType::float32, {8}, {{3, 4, reinterpret_cast<std::byte*>(a_.data())}}},
                {"b", DType::float32, {2}, {{0, 2, reinterpret_cast<std::byte*>(b_.data())}}}};
  }

  // Two files and a correct index, which a test then damages.
  void write_numbered() {
    write_tensors(dir() / "model-00001-of-00002.safetensors", {{"a", counting(8, 0)}});
    write_tensors(dir() / "model-00002-of-00002.safetensors", {{"b", counting(2, 50)}});
    index_ = {
        {"metadata", {{"total_size", 40}}},
        {"weight_map",
         {{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}}}};
    write_index(index_.dump());
  }
  void write_index(const std::string& text) {
    write_all(dir() / "model.safetensors.index.json", text);
  }
  void load_all(const std::vector<std::string>& ignored = {}) {
    load_hugging_face(dir(), tensors_, ignored, nullptr);
  }
  std::string index_refusal() {
    write_index(index_.dump());
    return error_of([&] { load_all(); });
  }
  void expect_loaded() const {
    EXPECT_EQ(a_, counting(4, 3));
    EXPECT_EQ(b_, counting(2, 50));
  }
  [[nodiscard]] const fs::path& dir() const { return folder_.path(); }

  TemporaryFolder folder_;
  std::vector<float> a_, b_;
  std::vector<LogicalTensor> tensors_;
  nlohmann::json index_;
};

TEST_F(HuggingFace, OneFile) {
  write_tensors(dir() / "model.safetensors", {{"a", counting(8, 0)}, {"b", counting(2, 50)}});
  load_all();
  expect_loaded();
}

TEST_F(HuggingFace, NumberedFiles) {
  write_numbered();
  load_all();
  expect_loaded();
}

TEST_F(HuggingFace, ConvertsLowPrecision) {
  const std::vector<float> a = counting(8, 0);
  std::vector<BFloat16> low;
  for (const float value : a) low.push_back(to_bfloat16(value));
  const std::vector<Float16> b{to_float16(50), to_float16(51)};
  write_safetensors(dir() / "model.safetensors", {{{"a", DType::bfloat16, {8}}, low.data()},
                                                  {{"b", DType::float16, {2}}, b.data()}});
  load_all();
  expect_loaded();
}

TEST_F(HuggingFace, MappedAndIgnoredNames) {
  write_tensors(dir() / "model.safetensors", {{"transformer.a", counting(8, 0)},
                                              {"b", counting(2, 50)},
                                              {"h.0.attn.bias", counting(3, 0)}});
  const auto either = [](const std::string& name) {
    return std::vector<std::string>{name, "transformer." + name};
  };
  load_hugging_face(dir(), tensors_, {"h.#.attn.bias"}, either);
  expect_loaded();
}

TEST_F(HuggingFace, ListsEverythingThatDoesNotFit) {
  write_tensors(dir() / "model.safetensors", {{"a", counting(9, 0)}, {"c", counting(2, 50)}});
  const std::string text = error_of([&] { load_all(); });
  EXPECT_TRUE(has(text, "tensor 'a' has shape [9], wanted [8]"));
  EXPECT_TRUE(has(text, "missing tensor 'b'"));
  EXPECT_TRUE(has(text, "unexpected tensor 'c'"));
}

TEST_F(HuggingFace, ListsTwentyOfThousands) {
  write_tensors(dir() / "model.safetensors", {{"a", counting(8, 0)}});
  tensors_.clear();
  for (int i = 0; i < 5'000; ++i) {
    tensors_.push_back({"layer." + std::to_string(i), DType::float32, {1}, {}});
  }
  const std::string text = error_of([&] { load_all(); });
  EXPECT_TRUE(has(text, "missing tensor 'layer.19'; and 4981 more;"));
  EXPECT_FALSE(has(text, "'layer.20'"));
}

TEST_F(HuggingFace, NoWeights) {
  EXPECT_TRUE(has(error_of([&] { load_all(); }), "has neither model.safetensors nor"));
}

TEST_F(HuggingFace, IndexNamesAMissingFile) {
  write_numbered();
  fs::remove(dir() / "model-00002-of-00002.safetensors");
  EXPECT_TRUE(has(index_refusal(), "'model-00002-of-00002.safetensors', which is not there"));
}

TEST_F(HuggingFace, IndexLeavesTheFolder) {
  write_numbered();
  for (const char* name : {"../x", "/etc/passwd", "a/b", "", ".."}) {
    index_["weight_map"]["b"] = name;
    EXPECT_TRUE(has(index_refusal(), "not a plain file name"));
  }
  index_["weight_map"]["b"] = 7;
  EXPECT_TRUE(has(index_refusal(), "not a plain file name"));
}

TEST_F(HuggingFace, TensorInTwoFiles) {
  write_numbered();
  write_tensors(dir() / "model-00002-of-00002.safetensors",
                {{"a", counting(8, 0)}, {"b", counting(2, 50)}});
  EXPECT_TRUE(has(index_refusal(), "tensor 'a' is in"));
}

TEST_F(HuggingFace, TensorAbsentFromItsFile) {
  write_numbered();
  index_["weight_map"]["c"] = "model-00001-of-00002.safetensors";
  EXPECT_TRUE(has(index_refusal(), "has tensor 'c', which it does not"));
}

TEST_F(HuggingFace, TensorInAnotherFileThanListed) {
  write_numbered();
  index_["weight_map"]["a"] = "model-00002-of-00002.safetensors";
  index_["weight_map"]["b"] = "model-00001-of-00002.safetensors";
  EXPECT_TRUE(has(index_refusal(), "does not list there"));
}

TEST_F(HuggingFace, TensorNotListed) {
  write_numbered();
  write_tensors(dir() / "model-00002-of-00002.safetensors",
                {{"b", counting(2, 50)}, {"extra", counting(1, 0)}});
  EXPECT_TRUE(has(index_refusal(), "has tensor 'extra'"));
}

// transformers and safetensors do not read it, and files whose writer counted a tied weight twice
// are about.
TEST_F(HuggingFace, WrongTotalSizeIsNoted) {
  write_numbered();
  for (const nlohmann::json& total :
       std::vector<nlohmann::json>{41, -1, "40", nlohmann::json::array(), 40, 40.0, nullptr}) {
    index_["metadata"]["total_size"] = total;
    write_index(index_.dump());
    load_all();
    expect_loaded();
    const auto notes = open_hugging_face(dir()).notes;
    const bool right = total.is_null() || total == 40;
    ASSERT_EQ(notes.size(), right ? 0u : 1u) << total;
    if (!right) {
      EXPECT_TRUE(has(notes.front(), "says total_size " + total.dump() +
                                         ", and the files have 40 bytes of tensors"));
    }
  }
}

TEST_F(HuggingFace, EmptyOrBrokenIndex) {
  write_numbered();
  index_["weight_map"] = nlohmann::json::object();
  EXPECT_TRUE(has(index_refusal(), "no weight_map, or an empty one"));
  index_ = nlohmann::json::array();
  EXPECT_TRUE(has(index_refusal(), "no weight_map, or an empty one"));
  write_index(R"({"weight_map":{"a":"x","a":"y"}})");
  EXPECT_TRUE(has(error_of([&] { load_all(); }), "key \"a\" twice"));
  write_index("{");
  EXPECT_TRUE(has(error_of([&] { load_all(); }), "not valid JSON"));
  write_index(std::string(1000, '['));
  EXPECT_TRUE(has(error_of([&] { load_all(); }), "nested deeper than 64"));
}

TEST(HuggingFaceNames, MatchWholeNamesAndNumbers) {
  EXPECT_TRUE(matches_name("h.#.attn.bias", "h.0.attn.bias"));
  EXPECT_TRUE(matches_name("h.#.attn.bias", "h.1234.attn.bias"));
  EXPECT_TRUE(matches_name("#", "7"));
  for (const char* name : {"h..attn.bias", "h.x.attn.bias", "h.1x.attn.bias", "h.1.attn.bia",
                           "h.1.attn.biases", "xh.1.attn.bias", "h.-1.attn.bias", "", "h.1"}) {
    EXPECT_FALSE(matches_name("h.#.attn.bias", name)) << name;
  }
  // As long as a malicious header can make it; the match must be fast.
  std::string digits = "h.";
  digits.resize(10'000'000, '1');
  EXPECT_TRUE(matches_name("h.#", digits));
}

}  // namespace
}  // namespace tessera::checkpoint
