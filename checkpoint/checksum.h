// XXH3 checksums of files by chunk, and reading that verifies every chunk it touches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file.h"

namespace tessera::checkpoint {

std::uint64_t checksum(const void* data, std::size_t bytes);
std::uint64_t checksum(std::string_view text);

// 1 MiB, doubled until a file has at most 16384 chunks, so that a manifest stays small.
std::uint64_t chunk_bytes_of(std::uint64_t file_bytes);
std::uint64_t chunk_count(std::uint64_t file_bytes, std::uint64_t chunk_bytes);

// What the manifest says of a file.
struct FileRecord {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::vector<std::uint64_t> chunks;  // checksums
};

// A file whose bytes are compared with their checksums before anyone sees them.
class VerifiedFile {
 public:
  // Checks the size at once.
  VerifiedFile(const std::filesystem::path& folder, const FileRecord& record);

  // In error messages, says in words what bytes [begin, end) of the file hold.
  using Describe = std::function<std::string(std::uint64_t begin, std::uint64_t end)>;
  void set_describe(Describe describe) { describe_ = std::move(describe); }

  // Bytes [offset, offset + bytes). Cheapest in rising order: the last chunk is kept.
  void read(std::uint64_t offset, void* data, std::size_t bytes);
  void verify_chunk(std::size_t chunk);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  // For error messages only: bytes that are not verified.
  [[nodiscard]] const File& unverified() const { return file_; }

 private:
  [[nodiscard]] std::size_t size_of_chunk(std::size_t chunk) const;
  void load_chunk(std::size_t chunk, void* data);

  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  FileRecord record_;
  File file_;
  Describe describe_;
  std::vector<std::byte> buffer_;
  std::size_t buffered_ = none;
};

}  // namespace tessera::checkpoint
