// The table of types.
#include "checkpoint/formats/gguf/gguf_types.h"

#include <fmt/format.h>
#include <array>
#include <atomic>
#include <utility>

#include "base/parallel.h"
#include "kernels/blocks.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::int64_t elements_of_thread = 32768;

GgufType quantised(std::uint32_t id, const char* name, std::uint32_t file_type,
                   const kernels::cpu::BlockCodec& codec, bool is_costly) {
  return {id,        name,         codec.elements, codec.bytes, DType::float32,
          file_type, codec.encode, codec.decode,   is_costly};
}

// The names of ggml's types by number.
constexpr std::array<std::pair<std::uint32_t, const char*>, 26> ggml_names{
    {{3, "q4_1"},    {6, "q5_0"},   {7, "q5_1"},     {9, "q8_1"},    {10, "q2_k"},    {11, "q3_k"},
     {13, "q5_k"},   {15, "q8_k"},  {16, "iq2_xxs"}, {17, "iq2_xs"}, {18, "iq3_xxs"}, {19, "iq1_s"},
     {20, "iq4_nl"}, {21, "iq3_s"}, {22, "iq2_s"},   {23, "iq4_xs"}, {24, "i8"},      {25, "i16"},
     {26, "i32"},    {27, "i64"},   {28, "f64"},     {29, "iq1_m"},  {34, "tq1_0"},   {35, "tq2_0"},
     {39, "mxfp4"},  {40, "nvfp4"}}};

}  // namespace

const std::vector<GgufType>& gguf_types() {
  static const std::vector<GgufType> types{
      {0, "f32", 1, 4, DType::float32, 0},
      {1, "f16", 1, 2, DType::float16, 1},
      {30, "bf16", 1, 2, DType::bfloat16, 32},
      quantised(8, "q8_0", 7, kernels::cpu::q8_0_codec(), false),
      quantised(2, "q4_0", 2, kernels::cpu::q4_0_codec(), false),
      quantised(12, "q4_k", 14, kernels::cpu::q4_k_codec(), true),
      quantised(14, "q6_k", 18, kernels::cpu::q6_k_codec(), true),
  };
  return types;
}

const GgufType* find_gguf_type(std::string_view name) {
  for (const GgufType& type : gguf_types()) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

const GgufType* find_gguf_type(std::uint32_t id) {
  for (const GgufType& type : gguf_types()) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

std::string gguf_type_name(std::uint32_t id) {
  if (const GgufType* type = find_gguf_type(id)) return type->name;
  for (const auto& [number, name] : ggml_names) {
    if (number == id) return name;
  }
  return fmt::format("number {}", id);
}

bool encode_blocks(const GgufType& type, const float* values, std::byte* out, std::int64_t blocks) {
  if (!type.is_costly) return type.encode(values, out, blocks);
  std::atomic<bool> fits{true};
  parallel_for(
      0, blocks, elements_of_thread / type.block, [&](std::int64_t first, std::int64_t last) {
        if (!type.encode(values + first * type.block,
                         out + static_cast<std::size_t>(first) * type.bytes, last - first)) {
          fits = false;
        }
      });
  return fits;
}

}  // namespace tessera::checkpoint::formats
