// The layout of a model file of llm.c.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

inline constexpr std::int32_t llmc_magic = 20240326;
inline constexpr std::int32_t llmc_float = 3;  // versions
inline constexpr std::int32_t llmc_bfloat16 = 5;
inline constexpr std::size_t llmc_header_numbers = 256;
inline constexpr std::uint64_t llmc_header_bytes = llmc_header_numbers * 4;
inline constexpr std::int64_t llmc_vocabulary_multiple = 128;
inline constexpr std::int64_t llmc_largest = std::int64_t{1} << 24;  // of a dimension in the header
inline constexpr std::int64_t llmc_most_layers = 65536;
inline constexpr std::size_t llmc_tile_bytes = std::size_t{4} << 20;

struct LlmcDimensions {
  std::int64_t positions = 0, vocabulary = 0, layers = 0, heads = 0, width = 0, padded = 0;
  DType dtype = DType::float32;
};

// A tensor with Hugging Face's name and shape, from element `first` of the file's data.
struct LlmcTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  bool transposed = false;
  std::int64_t first = 0;
};

struct LlmcLayout {
  std::vector<LlmcTensor> tensors;
  std::int64_t elements = 0;
};

// Refuses dimensions that are too large for a file or a list of tensors, and returns the elements
// of the whole file. Call it before using the dimensions. `name` is for messages.
std::int64_t check_llmc_size(const LlmcDimensions& dimensions, const std::string& name);
LlmcLayout llmc_layout(const LlmcDimensions& dimensions);
std::uint64_t llmc_file_bytes(const LlmcDimensions& dimensions, std::int64_t elements);

std::unique_ptr<Sink> create_llmc(const std::filesystem::path& path, const Contents& contents,
                                  const WriteOptions& options);

}  // namespace tessera::checkpoint::formats
