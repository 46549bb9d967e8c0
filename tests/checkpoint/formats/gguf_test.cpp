// GGUF files: what is written is read back, rows and blocks lie where llama.cpp expects them, and
// quantised elements are those of ggml's rule.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "checkpoint/formats/gguf/gguf_header.h"
#include "checkpoint/formats/gguf/gguf_types.h"
#include "checkpoint/formats/gguf_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::find_gguf_type;
using formats::GgufType;

// The rule in doubles, for blocks of 32 that lie side by side: the largest distance of a value from
// what it may become.
double step_of_block(const GgufType& type, const float* block) {
  double largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(double{block[i]}));
  // Half a step, or a whole one at the end without a number of q4_0; and the rounding of the scale.
  return type.name == std::string("q8_0") ? largest / 127 * 0.51 + largest * 0x1p-11
                                          : largest / 8 * 1.01 + largest * 0x1p-11;
}

class GgufRoundTrip : public ::testing::TestWithParam<const char*> {
 protected:
  // Converts to GGUF and back, and compares. `in_first`: of transposed matrices, whose blocks run
  // along the first dimension.
  void check(const std::vector<NamedShape>& tensors, const nlohmann::json& config) {
    const GgufType& type = *find_gguf_type(GetParam());
    write_small_model(folder_.path() / "hf", tensors, config);
    const auto report = convert(folder_.path() / "hf", folder_.path() / "m.gguf",
                                {.to = "gguf", .type = GetParam(), .verify = true});
    EXPECT_TRUE(report.verified);
    EXPECT_EQ(report.tensors.size(), tensors.size());
    convert(folder_.path() / "m.gguf", folder_.path() / "back", {.to = "hf", .verify = true});
    const SafetensorsFile back(folder_.path() / "back" / "model.safetensors");
    EXPECT_EQ(back.header().tensors().size(), tensors.size());
    for (const NamedShape& tensor : tensors) {
      SCOPED_TRACE(tensor.name);
      const TensorEntry* const entry = back.find(tensor.name);
      ASSERT_NE(entry, nullptr);
      EXPECT_EQ(entry->shape, tensor.shape);
      if (entry->stored->name == "F32") compare(type, tensor);
    }
  }

  void compare(const GgufType& type, const NamedShape& tensor) {
    const auto given = floats_of(folder_.path() / "hf" / "model.safetensors", tensor.name);
    const auto found = floats_of(folder_.path() / "back" / "model.safetensors", tensor.name);
    const bool kept = tensor.shape.size() == 1 || tensor.name.find("wpe") != std::string::npos;
    if (kept || !type.is_quantised()) {
      EXPECT_EQ(given, found);
      return;
    }
    const bool across = tensor.name.find(".c_") != std::string::npos;
    const auto columns = static_cast<std::size_t>(tensor.shape[1]);
    std::size_t changed = 0;
    for (std::size_t at = 0; at < given.size() / 32; ++at) {
      float block[32], result[32];
      for (std::size_t i = 0; i < 32; ++i) {
        // Block `at` along the rows, or along the columns.
        const std::size_t element =
            across ? (at / columns * 32 + i) * columns + at % columns : at * 32 + i;
        block[i] = given[element];
        result[i] = found[element];
      }
      for (std::size_t i = 0; i < 32; ++i) {
        EXPECT_LE(std::fabs(double{block[i]} - double{result[i]}), step_of_block(type, block));
        changed += block[i] != result[i] ? 1 : 0;
      }
    }
    EXPECT_GT(changed, given.size() / 2);  // it was quantised
  }

  TemporaryFolder folder_;
};

TEST_P(GgufRoundTrip, Llama) {
  check(small_llama_tensors(), small_llama_config());
}

TEST_P(GgufRoundTrip, Gpt2) {
  check(small_gpt2_tensors(), small_gpt2_config());
}

// Matrices that are turned in several parts.
TEST_P(GgufRoundTrip, AWiderGpt2) {
  check(small_gpt2_tensors(512), small_gpt2_config(512));
}

INSTANTIATE_TEST_SUITE_P(Types, GgufRoundTrip,
                         ::testing::Values("f32", "f16", "bf16", "q8_0", "q4_0"),
                         [](const auto& type) { return std::string(type.param); });

class GgufFile : public ::testing::Test {
 protected:
  void SetUp() override {
    write_small_model(folder_.path() / "hf", small_llama_tensors(), small_llama_config());
  }
  ConvertReport to_gguf(const std::string& type) {
    return convert(folder_.path() / "hf", gguf(), {.to = "gguf", .type = type, .force = true});
  }
  [[nodiscard]] fs::path gguf() const { return folder_.path() / "m.gguf"; }
  [[nodiscard]] formats::GgufHeader header() const {
    return formats::read_gguf_header(File::open_for_reading(gguf()));
  }
  [[nodiscard]] const formats::GgufTensor& tensor(const formats::GgufHeader& header,
                                                  const std::string& name) const {
    for (const auto& each : header.tensors) {
      if (each.name == name) return each;
    }
    throw std::runtime_error("no tensor " + name);
  }
  TemporaryFolder folder_;
};

// Row i and row i + 8 of a head of 16 rows are turned as a pair, and neighbours in GGUF.
TEST_F(GgufFile, RowsOfQueriesAndKeysAreInterleaved) {
  to_gguf("f32");
  const auto head = header();
  const std::string bytes = read_all(gguf());
  for (const auto& [name, hf, rows] :
       {std::tuple{"blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight", 64},
        std::tuple{"blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight", 32}}) {
    const auto given = floats_of(folder_.path() / "hf" / "model.safetensors", hf);
    const auto& place = tensor(head, name);
    for (int row = 0; row < rows; ++row) {
      const int from = row / 16 * 16 + (row % 2) * 8 + row % 16 / 2;
      EXPECT_EQ(std::memcmp(bytes.data() + place.begin + row * gguf_width * 4,
                            given.data() + from * gguf_width, gguf_width * 4),
                0)
          << name << " row " << row;
    }
  }
  const auto given = floats_of(folder_.path() / "hf" / "model.safetensors",
                               "model.layers.1.self_attn.v_proj.weight");
  EXPECT_EQ(std::memcmp(bytes.data() + tensor(head, "blk.1.attn_v.weight").begin, given.data(),
                        given.size() * 4),
            0);
}

TEST_F(GgufFile, SettingsAndTypesAreThoseOfLlamaCpp) {
  to_gguf("q8_0");
  const auto head = header();
  const auto setting = [&](const char* key) { return head.metadata.at(key); };
  EXPECT_EQ(setting("general.architecture"), "llama");
  EXPECT_EQ(setting("general.file_type"), 7);
  EXPECT_EQ(setting("llama.block_count"), gguf_layers);
  EXPECT_EQ(setting("llama.embedding_length"), gguf_width);
  EXPECT_EQ(setting("llama.feed_forward_length"), gguf_inner);
  EXPECT_EQ(setting("llama.attention.head_count"), 4);
  EXPECT_EQ(setting("llama.attention.head_count_kv"), 2);
  EXPECT_EQ(setting("llama.context_length"), 128);
  EXPECT_EQ(setting("llama.rope.dimension_count"), 16);
  EXPECT_EQ(setting("llama.attention.layer_norm_rms_epsilon").get<float>(), 1e-5f);
  EXPECT_EQ(setting("tokenizer.ggml.model"), "none");
  EXPECT_EQ(tensor(head, "blk.0.attn_norm.weight").type->name, std::string("f32"));
  EXPECT_EQ(tensor(head, "token_embd.weight").type->name, std::string("q8_0"));
  for (const auto& each : head.tensors) EXPECT_EQ(each.begin % 32, 0u) << each.name;
}

TEST_F(GgufFile, TheTypeIsThatOfTheWeightsUnlessAskedFor) {
  convert(folder_.path() / "hf", folder_.path() / "half", {.to = "hf", .dtype = DType::bfloat16});
  convert(folder_.path() / "half", gguf(), {.to = "gguf"});
  EXPECT_EQ(tensor(header(), "output.weight").type->name, std::string("bf16"));
  EXPECT_EQ(tensor(header(), "output_norm.weight").type->name, std::string("f32"));
}

TEST_F(GgufFile, TheSameConversionGivesTheSameBytes) {
  to_gguf("q4_0");
  const std::string first = read_all(gguf());
  to_gguf("q4_0");
  EXPECT_TRUE(read_all(gguf()) == first);
}

TEST_F(GgufFile, RowsThatBlocksDoNotDivideBecomeHalves) {
  auto tensors = small_llama_tensors();
  auto config = small_llama_config();
  config["intermediate_size"] = 80;
  for (NamedShape& each : tensors) {
    for (std::int64_t& size : each.shape) size = size == gguf_inner ? 80 : size;
  }
  write_small_model(folder_.path() / "hf", tensors, config);
  const auto report = to_gguf("q8_0");
  const auto head = header();
  EXPECT_EQ(tensor(head, "blk.0.ffn_down.weight").type->name, std::string("f16"));
  EXPECT_EQ(tensor(head, "blk.0.ffn_up.weight").type->name, std::string("q8_0"));
  EXPECT_TRUE(has(report.notes.at(0) + report.notes.at(1), "2 tensors stored as f16"));
}

TEST_F(GgufFile, ScaledRotaryPositionsAreATensorAndComeBack) {
  auto config = small_llama_config();
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 32}};
  write_all(folder_.path() / "hf" / "config.json", config.dump());
  to_gguf("f32");
  const auto head = header();
  const auto& place = tensor(head, "rope_freqs.weight");
  ASSERT_EQ(place.shape, (std::vector<std::int64_t>{8}));
  const std::string bytes = read_all(gguf());
  std::vector<float> divisors(8);
  std::memcpy(divisors.data(), bytes.data() + place.begin, 32);
  EXPECT_EQ(divisors.front(), 1.0f);  // a wave of 6 positions is below 32 / 4
  EXPECT_EQ(divisors.back(), 8.0f);   // one of 2 pi 10^3.5 is above 32
  convert(gguf(), folder_.path() / "back", {.to = "hf"});
  const auto back = nlohmann::json::parse(read_all(folder_.path() / "back" / "config.json"));
  EXPECT_EQ(back.at("rope_scaling"), config.at("rope_scaling"));
  EXPECT_EQ(back.at("rms_norm_eps"), 1e-5);
  EXPECT_EQ(back.at("head_dim"), 16);
}

// A model that comes back stops at the same tokens, and has none of the numbers that are a default
// of its class in transformers.
TEST_F(GgufFile, SpecialTokensComeBack) {
  const auto back = [&](const nlohmann::json& config, const std::string& generation = "{}") {
    write_all(folder_.path() / "hf" / "config.json", config.dump());
    write_all(folder_.path() / "hf" / "generation_config.json", generation);
    fs::remove_all(folder_.path() / "back");
    fs::remove(gguf());
    to_gguf("f32");
    convert(gguf(), folder_.path() / "back", {.to = "hf"});
    return nlohmann::json::parse(read_all(folder_.path() / "back" / "config.json"));
  };
  auto config = small_llama_config();
  auto read = back(config);
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    EXPECT_TRUE(read.at(name).is_null()) << name;
  }
  config["bos_token_id"] = 1;
  config["eos_token_id"] = 3;
  config["pad_token_id"] = 0;
  read = back(config);
  EXPECT_EQ(read.at("bos_token_id"), 1);
  EXPECT_EQ(read.at("eos_token_id"), 3);
  EXPECT_EQ(read.at("pad_token_id"), 0);
  EXPECT_EQ(back(config, R"({"eos_token_id": [3, 2]})").at("eos_token_id"), nlohmann::json({3, 2}));
  config["eos_token_id"] = 1000;  // beyond the vocabulary
  EXPECT_TRUE(back(config).at("eos_token_id").is_null());
}

TEST(GgufTypes, BlocksOfKnownValues) {
  std::vector<float> values(32, 0.0f);
  values[0] = 127.0f;
  values[1] = -1.5f;  // halves go away from zero
  values[2] = 2.5f;
  values[3] = -127.0f;
  std::vector<std::byte> bytes(34);
  ASSERT_TRUE(find_gguf_type("q8_0")->encode(values.data(), bytes.data(), 1));
  EXPECT_EQ(bytes[0], std::byte{0x00});  // 1.0 as float16
  EXPECT_EQ(bytes[1], std::byte{0x3c});
  const std::vector<int> integers{127, -2, 3, -127, 0};
  for (std::size_t i = 0; i < integers.size(); ++i) {
    EXPECT_EQ(static_cast<std::int8_t>(bytes[2 + i]), integers[i]);
  }
  values.assign(32, 0.0f);
  values[0] = 8.0f;
  values[16] = -8.0f;  // the first of the two largest magnitudes decides
  values[1] = 1.0f;
  bytes.resize(18);
  ASSERT_TRUE(find_gguf_type("q4_0")->encode(values.data(), bytes.data(), 1));
  EXPECT_EQ(bytes[1], std::byte{0xbc});  // -1.0 as float16
  EXPECT_EQ(bytes[2], std::byte{0xf0});  // 0 is 8 / -1 + 8; 16 is cut to 15
  EXPECT_EQ(bytes[3], std::byte{0x87});
}

TEST(GgufTypes, ValuesThatTheScaleCannotHoldAreRefused) {
  std::vector<std::byte> bytes(34);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -1e30f}) {
    std::vector<float> values(32, 1.0f);
    values[7] = bad;
    EXPECT_FALSE(find_gguf_type("q8_0")->encode(values.data(), bytes.data(), 1)) << bad;
    EXPECT_FALSE(find_gguf_type("q4_0")->encode(values.data(), bytes.data(), 1)) << bad;
  }
  std::vector<float> tiny(32, std::numeric_limits<float>::denorm_min());
  EXPECT_TRUE(find_gguf_type("q8_0")->encode(tiny.data(), bytes.data(), 1));
  EXPECT_TRUE(find_gguf_type("q4_0")->encode(tiny.data(), bytes.data(), 1));
}

}  // namespace
}  // namespace tessera::checkpoint
