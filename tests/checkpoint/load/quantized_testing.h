// Safetensors files of quantised weights, written byte by byte.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/low_precision.h"
#include "checkpoint/formats/formats_testing.h"

namespace tessera::checkpoint::testing {

struct RawTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

// Also dtypes that write_safetensors() does not have.
inline void write_raw(const fs::path& path, const std::vector<RawTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const RawTensor& tensor : tensors) {
    const std::size_t begin = data.size();
    data += tensor.bytes;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  const std::uint64_t bytes = text.size();
  std::memcpy(length.data(), &bytes, sizeof bytes);
  write_all(path, length + text + data);
}

inline std::string as_bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

inline std::string bf16_bytes(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) {
    const std::uint16_t bits = to_bfloat16(value).bits;
    bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
  return bytes;
}

}  // namespace tessera::checkpoint::testing
