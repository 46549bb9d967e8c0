// Computes sizes only: a header larger than the available memory must not be read.
#include "checkpoint/convert/stream.h"

#include <algorithm>
#include <array>
#include <string>
#include <system_error>

#include "base/error.h"
#include "checkpoint/formats/torch/zip.h"
#include "checkpoint/io/file.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

namespace {

std::uint64_t safetensors_header_bytes(const File& file) {
  std::array<unsigned char, 8> prefix{};
  file.read_at(0, prefix.data(), prefix.size());
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = (length << 8) | prefix[i];
  return std::min(length, file.size());
}

// The directory, and the pickle unless the directory is large already.
std::uint64_t archive_header_bytes(const File& file, const std::string& source) {
  const ReadBytes read = [&](std::uint64_t offset, void* data, std::size_t bytes) {
    file.read_at(offset, data, bytes);
  };
  constexpr std::uint64_t small_directory = std::uint64_t{8} << 20;
  std::uint64_t bytes = formats::zip_directory_bytes(read, file.size(), source);
  if (bytes > small_directory) return bytes;
  const formats::ZipDirectory directory(read, file.size(), source);
  for (const formats::ZipRecord& record : directory.records()) {
    if (record.name.ends_with("/data.pkl")) bytes += record.bytes;
  }
  return bytes;
}

std::uint64_t header_bytes_of_file(const fs::path& path) {
  const std::string name = path.filename().string();
  try {
    const File file = File::open_for_reading(path);
    if (name == manifest_name || name == ".metadata" || name.ends_with(".index.json")) {
      return file.size();
    }
    if (file.size() < 64) return 0;
    if (name.ends_with(".safetensors")) return safetensors_header_bytes(file);
    if (name.ends_with(".distcp")) return 0;  // an archive for each chunk, one at a time
    std::array<char, 4> head{};
    file.read_at(0, head.data(), head.size());
    if (std::string_view(head.data(), head.size()) != "PK\x03\x04") return 0;
    return archive_header_bytes(file, "'" + path.string() + "'");
  } catch (const Error&) {
    return 0;
  }
}

std::uint64_t header_bytes_to(const fs::path& path, int depth) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return header_bytes_of_file(path);
  std::uint64_t bytes = 0;
  // An entry that cannot be listed may not belong to the checkpoint.
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code of_entry;
    const bool is_folder = entry->is_directory(of_entry);
    if (!is_folder || depth > 0) bytes += header_bytes_to(entry->path(), depth - 1);
  }
  return bytes;
}

}  // namespace

std::uint64_t header_bytes(const fs::path& path) {
  return header_bytes_to(path, 1);  // Accelerate and DeepSpeed keep the parts in folders
}

}  // namespace tessera::checkpoint
