// Compares llm.c's model files with bytes that are built here from the format: header, tensors by
// kind over the layers, [out, in], padded vocabulary.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "checkpoint/convert/convert.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

constexpr std::int64_t positions = 6, vocabulary = 130, padded = 256, layers = 2, heads = 2,
                       width = 8;

// The value of element (row, column) of a tensor of GPT-2, in Hugging Face's layout.
float value_of(std::size_t tensor, std::int64_t layer, std::int64_t row, std::int64_t column) {
  return static_cast<float>(
             (static_cast<std::int64_t>(tensor) * 37 + layer * 101 + row * 13 + column * 5) % 256) -
         128.0f;
}

struct GptTensor {
  const char* name;  // with {} for the layer
  std::int64_t rows, columns;
  bool transposed;
  bool of_layer;
};

const std::vector<GptTensor>& gpt_tensors() {
  static const std::vector<GptTensor> list{
      {"transformer.wte.weight", vocabulary, width, false, false},
      {"transformer.wpe.weight", positions, width, false, false},
      {"transformer.h.{}.ln_1.weight", width, 0, false, true},
      {"transformer.h.{}.ln_1.bias", width, 0, false, true},
      {"transformer.h.{}.attn.c_attn.weight", width, 3 * width, true, true},
      {"transformer.h.{}.attn.c_attn.bias", 3 * width, 0, false, true},
      {"transformer.h.{}.attn.c_proj.weight", width, width, true, true},
      {"transformer.h.{}.attn.c_proj.bias", width, 0, false, true},
      {"transformer.h.{}.ln_2.weight", width, 0, false, true},
      {"transformer.h.{}.ln_2.bias", width, 0, false, true},
      {"transformer.h.{}.mlp.c_fc.weight", width, 4 * width, true, true},
      {"transformer.h.{}.mlp.c_fc.bias", 4 * width, 0, false, true},
      {"transformer.h.{}.mlp.c_proj.weight", 4 * width, width, true, true},
      {"transformer.h.{}.mlp.c_proj.bias", width, 0, false, true},
      {"transformer.ln_f.weight", width, 0, false, false},
      {"transformer.ln_f.bias", width, 0, false, false}};
  return list;
}

void for_each_gpt(const std::function<void(std::size_t, std::int64_t, std::string)>& body) {
  for (std::size_t t = 0; t < gpt_tensors().size(); ++t) {
    const GptTensor& tensor = gpt_tensors()[t];
    for (std::int64_t layer = 0; layer < (tensor.of_layer ? layers : 1); ++layer) {
      body(t, layer, tensor.of_layer ? fmt::format(fmt::runtime(tensor.name), layer) : tensor.name);
    }
  }
}

std::string bytes_of_float(float value, bool low) {
  std::string bytes(low ? 2 : 4, '\0');
  if (low) {
    const BFloat16 bits = to_bfloat16(value);
    std::memcpy(bytes.data(), &bits, 2);
  } else {
    std::memcpy(bytes.data(), &value, 4);
  }
  return bytes;
}

// The file, byte by byte.
std::string llmc_bytes(bool low) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = 20240326;
  header[1] = low ? 5 : 3;
  header[2] = positions;
  header[3] = vocabulary;
  header[4] = layers;
  header[5] = heads;
  header[6] = width;
  header[7] = padded;
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  for_each_gpt([&](std::size_t t, std::int64_t layer, const std::string&) {
    const GptTensor& tensor = gpt_tensors()[t];
    const std::int64_t columns = std::max<std::int64_t>(1, tensor.columns);
    if (tensor.transposed) {  // [out, in]
      for (std::int64_t column = 0; column < columns; ++column) {
        for (std::int64_t row = 0; row < tensor.rows; ++row) {
          bytes += bytes_of_float(value_of(t, layer, row, column), low);
        }
      }
    } else {
      const std::int64_t rows = t == 0 ? padded : tensor.rows;
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t column = 0; column < columns; ++column) {
          const bool is_padding = row >= tensor.rows;
          bytes += bytes_of_float(is_padding ? 0 : value_of(t, layer, row, column), low);
        }
      }
    }
  });
  return bytes;
}

class Llmc : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] fs::path operator/(const std::string& name) const { return folder_.path() / name; }
  TemporaryFolder folder_;
};

TEST_P(Llmc, ConvertsToHuggingFaceAndBackUnchanged) {
  const bool low = GetParam();
  write_all(*this / "model.bin", llmc_bytes(low));
  convert(*this / "model.bin", *this / "hf", {.to = "hf", .verify = true});
  const SafetensorsFile file(*this / "hf" / "model.safetensors");
  std::size_t seen = 0;
  for_each_gpt([&](std::size_t t, std::int64_t layer, const std::string& name) {
    const GptTensor& tensor = gpt_tensors()[t];
    const TensorEntry* entry = file.find(name);
    ASSERT_NE(entry, nullptr) << name;
    std::vector<std::int64_t> shape{tensor.rows};
    if (tensor.columns > 0) shape.push_back(tensor.columns);
    EXPECT_EQ(entry->shape, shape) << name;
    EXPECT_EQ(entry->stored->name, low ? "BF16" : "F32");
    std::string found(static_cast<std::size_t>(entry->end - entry->begin), '\0');
    file.read(*entry, 0, found.data(), found.size());
    std::string wanted;
    for (std::int64_t row = 0; row < tensor.rows; ++row) {
      for (std::int64_t column = 0; column < std::max<std::int64_t>(1, tensor.columns); ++column) {
        wanted += bytes_of_float(value_of(t, layer, row, column), low);
      }
    }
    EXPECT_TRUE(found == wanted) << name;
    ++seen;
  });
  EXPECT_EQ(file.header().tensors().size(), seen);
  const auto config = nlohmann::json::parse(read_all(*this / "hf" / "config.json"));
  EXPECT_EQ(config.at("vocab_size"), vocabulary);
  EXPECT_EQ(config.at("n_head"), heads);

  // --verify reads the transposed file back.
  const auto report = convert(*this / "hf", *this / "back.bin", {.to = "llmc", .verify = true});
  EXPECT_TRUE(read_all(*this / "back.bin") == llmc_bytes(low));
  EXPECT_EQ(report.tensors.size(), seen);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Llmc, ::testing::Values(false, true), [](const auto& dtype) {
  return std::string(dtype.param ? "BFloat16" : "Float32");
});

class LlmcRefusal : public ::testing::Test {
 protected:
  std::string refusal(const std::function<void(std::string&)>& spoil) {
    std::string bytes = llmc_bytes(false);
    spoil(bytes);
    write_all(path(), bytes);
    return error_of([&] { convert(path(), folder_.path() / "out", {.to = "hf"}); });
  }
  static void put(std::string& bytes, std::size_t number, std::int32_t value) {
    std::memcpy(bytes.data() + number * 4, &value, 4);
  }
  [[nodiscard]] fs::path path() const { return folder_.path() / "model.bin"; }
  TemporaryFolder folder_;
};

TEST_F(LlmcRefusal, HeadersThatLie) {
  EXPECT_TRUE(has(refusal([](std::string& b) { put(b, 1, 4); }), "version 4"));
  EXPECT_TRUE(has(refusal([](std::string& b) { put(b, 4, -1); }), "layers -1"));
  EXPECT_TRUE(has(refusal([](std::string& b) { put(b, 6, 1 << 30); }), "width 1073741824"));
  EXPECT_TRUE(has(refusal([](std::string& b) { put(b, 5, 3); }), "3 heads do not divide"));
  EXPECT_TRUE(has(refusal([](std::string& b) { put(b, 7, 100); }), "does not fit the padded one"));
  EXPECT_TRUE(has(refusal([](std::string& b) { b.pop_back(); }), "truncated"));
  EXPECT_TRUE(has(refusal([](std::string& b) { b += 'x'; }), "damaged"));
  // Sizes beyond those of any file allocate no memory.
  EXPECT_TRUE(has(refusal([](std::string& b) { put(b, 2, 1 << 24); }), "truncated"));
  EXPECT_TRUE(has(refusal([](std::string& b) { put(b, 4, 1 << 24); }), "are not a GPT-2"));
  EXPECT_TRUE(has(refusal([](std::string& b) { put(b, 6, 1 << 24); }), "truncated"));
  EXPECT_TRUE(has(refusal([](std::string& b) {
                    put(b, 4, 60000);
                    put(b, 6, 1 << 24);
                  }),
                  "are not a GPT-2"));
}

TEST_F(LlmcRefusal, ModelsOtherThanGpt2) {
  write_all(path(), llmc_bytes(false));
  const fs::path hf = folder_.path() / "hf";
  convert(path(), hf, {.to = "hf"});
  const std::string config = read_all(hf / "config.json");
  const auto to_llmc = [&] {
    return error_of([&] { convert(hf, folder_.path() / "out.bin", {.to = "llmc"}); });
  };
  auto changed = nlohmann::json::parse(config);
  changed["layer_norm_epsilon"] = 1e-6;
  write_all(hf / "config.json", changed.dump());
  EXPECT_TRUE(has(to_llmc(), "layer_norm_epsilon is 1e-06"));
  fs::remove(hf / "config.json");
  EXPECT_TRUE(has(to_llmc(), "which only config.json can tell"));
  write_all(hf / "config.json", config);
  EXPECT_TRUE(has(error_of([&] {
                    convert(hf, folder_.path() / "out.bin",
                            {.to = "llmc", .dtype = DType::float16});
                  }),
                  "add --dtype fp32 or --dtype bf16"));
  const std::vector<float> values(8, 1);
  write_safetensors(hf / "model.safetensors", {{{"other", DType::float32, {2, 4}}, values.data()}});
  EXPECT_TRUE(has(to_llmc(), "GPT-2 and nothing else"));
}

}  // namespace
}  // namespace tessera::checkpoint
