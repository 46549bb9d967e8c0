// The safetensors format: reads headers with every check that the format requires, writes headers
// reproducibly, and writes small files whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/io/file.h"

namespace tessera::checkpoint {

// The files of a Hugging Face folder that hold the weights.
inline constexpr const char* hugging_face_file = "model.safetensors";
inline constexpr const char* hugging_face_index = "model.safetensors.index.json";

inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;
inline constexpr std::size_t tensor_name_limit = 4096;  // bytes

// An element type of the format. Tensors of a type that Tessera does not have are listed but not
// loaded.
struct StoredDType {
  std::string_view name;
  unsigned bits;
  std::optional<DType> dtype;
};
const StoredDType* find_stored_dtype(std::string_view name);
const StoredDType& stored_dtype(DType dtype);

struct TensorEntry {
  std::string name;
  const StoredDType* stored = nullptr;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the file
  std::uint64_t end = 0;
};

// A file's table of contents, in the order of the data.
class SafetensorsHeader {
 public:
  SafetensorsHeader() = default;
  SafetensorsHeader(std::vector<TensorEntry> tensors, std::map<std::string, std::string> metadata);
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] const TensorEntry* find(const std::string& name) const;
  // Describes the tensors with bytes in [begin, end) of the file, for error messages.
  [[nodiscard]] std::string describe_range(std::uint64_t begin, std::uint64_t end) const;

 private:
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

// Reads bytes [offset, offset + bytes) of a file or throws.
using ReadBytes = std::function<void(std::uint64_t offset, void* data, std::size_t bytes)>;

// Throws Error(checkpoint) that begins with `source` and names the tensor.
SafetensorsHeader read_safetensors_header(const ReadBytes& read, std::uint64_t file_bytes,
                                          const std::string& source);

struct TensorSpec {
  std::string name;
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;
  // The name in the file, if it is another of the same size (I8, stored as uint8). Null: dtype's.
  const StoredDType* stored = nullptr;
};

struct ComposedHeader {
  std::string bytes;                   // the beginning of the file: length, JSON, padding
  std::vector<std::uint64_t> offsets;  // of each spec's data, from the start of the file
  std::uint64_t file_bytes = 0;
};

// Data in order of falling alignment, then name; 8-byte padded. Adds `format` = "pt" to the
// metadata, because transformers refuses a file without it. The same specs give the same bytes.
ComposedHeader compose_safetensors_header(const std::vector<TensorSpec>& specs,
                                          std::map<std::string, std::string> metadata = {});

// The product of a shape. Throws an Error that begins with `what` if it overflows.
std::int64_t element_count(const std::vector<std::int64_t>& shape, std::string_view what);
std::string describe_shape(const std::vector<std::int64_t>& shape);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  [[nodiscard]] const File& file() const { return file_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] const TensorEntry* find(const std::string& name) const {
    return header_.find(name);
  }
  // Reads bytes [first, first + bytes) of a tensor's data.
  void read(const TensorEntry& tensor, std::uint64_t first, void* data, std::size_t bytes) const;

 private:
  File file_;
  SafetensorsHeader header_;
};

struct TensorToWrite {
  TensorSpec spec;
  const void* data = nullptr;  // contiguous, of the spec's size
};

// Writes a temporary file beside `path` and renames it over `path`, durable.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tessera::checkpoint
