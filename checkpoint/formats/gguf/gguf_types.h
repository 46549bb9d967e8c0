// The element types of GGUF files that this program reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace tessera::checkpoint::formats {

// A type of elements. Quantised types hold blocks of `block` elements of a row; kernels/blocks.h
// describes them.
struct GgufType {
  std::uint32_t id;         // ggml's number of the type
  const char* name;         // as --type has it
  std::int64_t block;       // elements of a block; 1: plain
  std::size_t bytes;        // of a block
  DType dtype;              // of the elements as they are read: float32 for quantised types
  std::uint32_t file_type;  // general.file_type of a file whose matrices have this type
  // Quantised types only. Both take whole blocks. `encode` returns false if a value is not finite,
  // or too large for the scale; the result is then not to be used.
  bool (*encode)(const float* values, std::byte* out, std::int64_t blocks) = nullptr;
  void (*decode)(const std::byte* in, float* values, std::int64_t blocks) = nullptr;

  // The encoding takes so long that several threads are worth their start.
  bool is_costly = false;

  [[nodiscard]] bool is_quantised() const { return encode != nullptr; }
  // The bytes of elements that begin and end at blocks.
  [[nodiscard]] std::uint64_t bytes_of(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements / block) * bytes;
  }
};

const std::vector<GgufType>& gguf_types();
const GgufType* find_gguf_type(std::string_view name);
const GgufType* find_gguf_type(std::uint32_t id);
// The name of any type that ggml has, for messages.
std::string gguf_type_name(std::uint32_t id);

// type.encode, on all compute threads if it is costly.
bool encode_blocks(const GgufType& type, const float* values, std::byte* out, std::int64_t blocks);

}  // namespace tessera::checkpoint::formats
