// The header of a GGUF file: metadata and the table of tensors. Version 3, little-endian; version 2
// has the same layout.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/gguf/gguf_types.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint::formats {

inline constexpr std::string_view gguf_magic = "GGUF";
inline constexpr std::uint32_t gguf_version = 3;
inline constexpr std::uint64_t gguf_alignment =
    32;  // of tensors, if general.alignment is not there

// The number of a type of values.
enum class GgufValue : std::uint32_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  text,
  array,
  uint64,
  int64,
  float64
};

struct GgufTensor {
  std::string name;
  const GgufType* type = nullptr;
  std::vector<std::int64_t> shape;  // row-major: the reverse of the file's
  std::uint64_t begin = 0;          // in the file
  std::uint64_t bytes = 0;
};

struct GgufHeader {
  // Numbers, booleans and texts. Arrays, and texts too long for a setting, are null.
  std::map<std::string, nlohmann::json> metadata;
  std::vector<GgufTensor> tensors;
  std::uint64_t bytes = 0;  // up to the data
};

// Checks everything against the size of the file: each tensor lies in it, and no two share a byte.
// Memory: the names and short texts. Error(checkpoint) names the file and the problem.
GgufHeader read_gguf_header(const File& file);

// Metadata being written. Keys come in the order of the calls.
class GgufMetadata {
 public:
  void text(std::string_view key, std::string_view value);
  void number(std::string_view key, std::uint32_t value);
  void real(std::string_view key, float value);
  void boolean(std::string_view key, bool value);
  void texts(std::string_view key, const std::vector<std::string>& values);
  void numbers(std::string_view key, std::span<const std::int32_t> values);
  void reals(std::string_view key, std::span<const float> values);
  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }

 private:
  void key(std::string_view key, GgufValue type);
  void put_text(std::string_view text);
  std::string bytes_;
  std::uint64_t count_ = 0;
};

// Gives each tensor its place and size, in this order, and returns the bytes before the first.
std::string compose_gguf_header(const GgufMetadata& metadata, std::vector<GgufTensor>& tensors);

}  // namespace tessera::checkpoint::formats
