// A file of embeddings, [rows, dimension] of fp32: NumPy's .npy or .safetensors. Several ranks may
// write one file; the rows come in any order, and their number is given at the end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/io/file.h"
#include "sharding/context/context.h"

namespace tessera::cli {

// The file gets its name when it is complete: until finish() it is PATH.partial, which is removed
// after an error.
class EmbeddingFile {
 public:
  // Collective. Error(usage) for a name without a known format.
  EmbeddingFile(std::filesystem::path path, std::int64_t dimension, const Context& context);
  ~EmbeddingFile();
  EmbeddingFile(const EmbeddingFile&) = delete;
  EmbeddingFile& operator=(const EmbeddingFile&) = delete;

  void write_row(std::int64_t row, std::span<const float> values);
  // Collective, once every rank has written its rows.
  void finish(std::int64_t rows);

  // Error(usage) unless the name has a known format: for code that has not opened a file yet.
  static void check_name(const std::filesystem::path& path);
  // Whether a file that begins like this was written here.
  static bool is_one(std::string_view beginning);

 private:
  [[nodiscard]] std::string header(std::int64_t rows) const;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::int64_t dimension_;
  const Context& context_;
  std::optional<checkpoint::File> file_;
};

}  // namespace tessera::cli
