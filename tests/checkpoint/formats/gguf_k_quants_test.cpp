// GGUF files with blocks of 256 elements: rows are encoded where they lie in the file, and rows
// that such blocks do not divide have another type.
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/formats/gguf/gguf_header.h"
#include "checkpoint/formats/gguf/gguf_types.h"
#include "checkpoint/formats/gguf_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using formats::find_gguf_type;
using formats::GgufType;

std::vector<NamedShape> wide_llama_tensors() {
  auto tensors = small_llama_tensors();
  for (NamedShape& tensor : tensors) {
    for (std::int64_t& size : tensor.shape) {
      size = size == gguf_vocabulary ? size : size == gguf_inner ? 512 : 4 * size;
    }
  }
  return tensors;
}

nlohmann::json wide_llama_config() {
  auto config = small_llama_config();
  config["hidden_size"] = 4 * gguf_width;
  config["intermediate_size"] = 512;
  return config;
}

class GgufKQuants : public ::testing::TestWithParam<const char*> {
 protected:
  ConvertReport to_gguf(const std::vector<NamedShape>& tensors, const nlohmann::json& config) {
    write_small_model(folder_.path() / "hf", tensors, config);
    return convert(folder_.path() / "hf", folder_.path() / "m.gguf",
                   {.to = "gguf", .type = GetParam(), .verify = true});
  }
  [[nodiscard]] formats::GgufHeader header() const {
    return formats::read_gguf_header(File::open_for_reading(folder_.path() / "m.gguf"));
  }

  // Each element that is read back is that of its row's codec.
  void expect_rows_of_the_codec(const std::vector<NamedShape>& tensors, bool transposed) {
    const GgufType& type = *find_gguf_type(GetParam());
    convert(folder_.path() / "m.gguf", folder_.path() / "back", {.to = "hf", .verify = true});
    for (const NamedShape& tensor : tensors) {
      if (tensor.shape.size() == 1 || tensor.name.find("wpe") != std::string::npos) continue;
      SCOPED_TRACE(tensor.name);
      const auto given = floats_of(folder_.path() / "hf" / "model.safetensors", tensor.name);
      const auto found = floats_of(folder_.path() / "back" / "model.safetensors", tensor.name);
      const auto rows = static_cast<std::size_t>(tensor.shape[0]);
      const auto columns = static_cast<std::size_t>(tensor.shape[1]);
      const bool across = transposed && tensor.name.find(".c_") != std::string::npos;
      const std::size_t length = across ? rows : columns;
      const std::size_t lines = across ? columns : rows;
      std::vector<float> line(length);
      std::vector<std::byte> bytes(
          static_cast<std::size_t>(type.bytes_of(static_cast<int>(length))));
      const std::int64_t blocks = static_cast<std::int64_t>(length) / type.block;
      for (std::size_t n = 0; n < lines; ++n) {
        const auto at = [&](std::size_t i) { return across ? i * columns + n : n * columns + i; };
        for (std::size_t i = 0; i < length; ++i) line[i] = given[at(i)];
        ASSERT_TRUE(type.encode(line.data(), bytes.data(), blocks));
        type.decode(bytes.data(), line.data(), blocks);
        for (std::size_t i = 0; i < length; ++i) ASSERT_EQ(found[at(i)], line[i]) << n << ", " << i;
      }
    }
  }

  TemporaryFolder folder_;
};

TEST_P(GgufKQuants, Llama) {
  const auto report = to_gguf(wide_llama_tensors(), wide_llama_config());
  EXPECT_TRUE(report.verified);
  expect_rows_of_the_codec(wide_llama_tensors(), false);
  const auto head = header();
  EXPECT_EQ(head.metadata.at("general.file_type"), GetParam() == std::string("q4_k") ? 14 : 18);
  for (const auto& tensor : head.tensors) {
    EXPECT_EQ(tensor.type->name, std::string(tensor.shape.size() == 1 ? "f32" : GetParam()));
  }
}

TEST_P(GgufKQuants, Gpt2WhoseMatricesAreTransposed) {
  to_gguf(small_gpt2_tensors(512), small_gpt2_config(512));
  expect_rows_of_the_codec(small_gpt2_tensors(512), true);
}

TEST_P(GgufKQuants, RowsOfOtherLengthsHaveOtherTypes) {
  auto tensors = wide_llama_tensors();
  auto config = wide_llama_config();
  for (NamedShape& tensor : tensors) {  // one layer of each kind of row
    if (tensor.name.find("down_proj") != std::string::npos) tensor.shape[1] = 288;
    if (tensor.name.find("gate_proj") != std::string::npos) tensor.shape[0] = 288;
    if (tensor.name.find("up_proj") != std::string::npos) tensor.shape[0] = 288;
  }
  config["intermediate_size"] = 288;
  auto report = to_gguf(tensors, config);
  EXPECT_TRUE(has(report.notes.back(), std::string("2 tensors stored as q8_0: ") + GetParam() +
                                           " needs rows of a multiple of 256"))
      << report.notes.back();
  for (const auto& tensor : header().tensors) {
    const std::string type = tensor.type->name;
    if (has(tensor.name, "ffn_down")) {
      EXPECT_EQ(type, "q8_0");
    } else if (has(tensor.name, "ffn_up")) {
      EXPECT_EQ(type, GetParam());
    }
  }
}

TEST_P(GgufKQuants, ValuesThatNoBlockHoldsAreRefused) {
  auto tensors = wide_llama_tensors();
  write_small_model(folder_.path() / "hf", tensors, wide_llama_config());
  const fs::path file = folder_.path() / "hf" / "model.safetensors";
  const SafetensorsFile opened(file);
  const TensorEntry* const entry = opened.find("lm_head.weight");
  ASSERT_NE(entry, nullptr);
  const float bad = std::numeric_limits<float>::infinity();
  File::open_for_writing(file).write_at(entry->begin + 400, &bad, sizeof bad);
  EXPECT_TRUE(has(error_of([&] {
                    convert(folder_.path() / "hf", folder_.path() / "m.gguf",
                            {.to = "gguf", .type = GetParam()});
                  }),
                  "tensor 'lm_head.weight' has values that"));
  EXPECT_FALSE(fs::exists(folder_.path() / "m.gguf"));
}

INSTANTIATE_TEST_SUITE_P(Types, GgufKQuants, ::testing::Values("q4_k", "q6_k"),
                         [](const auto& type) { return std::string(type.param); });

}  // namespace
}  // namespace tessera::checkpoint
