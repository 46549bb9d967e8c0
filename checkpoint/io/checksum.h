// XXH3 checksums of files by chunk, and reads that verify every chunk they touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/io/file.h"

namespace tessera::checkpoint {

std::uint64_t checksum(const void* data, std::size_t bytes);
std::uint64_t checksum(std::string_view text);

// A checksum or an id as text: 16 lower-case hexadecimal digits.
std::string to_hex(std::uint64_t value);
bool is_hex_id(std::string_view text);

// 1 MiB, doubled until a file has at most 16384 chunks, so that a manifest stays small.
std::uint64_t chunk_bytes_of(std::uint64_t file_bytes);
std::uint64_t chunk_count(std::uint64_t file_bytes, std::uint64_t chunk_bytes);

// The manifest's record of a file.
struct FileRecord {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::vector<std::uint64_t> chunks;     // checksums
  std::vector<std::uint64_t> cuts = {};  // see ChunkMap
};

// The places of a file's chunks. They are counted from byte 0, and anew from each of `cuts` (the
// ends of what each rank wrote), so that the writer of a chunk has all of it in memory.
class ChunkMap {
 public:
  // `cuts` rise, within the file. `chunk_bytes` is not 0.
  ChunkMap(std::uint64_t file_bytes, std::uint64_t chunk_bytes, std::vector<std::uint64_t> cuts);

  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  [[nodiscard]] std::size_t count() const { return spans_.back().first_chunk; }
  [[nodiscard]] Range range(std::size_t chunk) const;
  // The chunk that contains the byte.
  [[nodiscard]] std::size_t at(std::uint64_t offset) const;
  // First chunk of the `span`th run of bytes between two cuts.
  [[nodiscard]] std::size_t first_of_span(std::size_t span) const {
    return spans_[span].first_chunk;
  }

 private:
  struct Span {
    std::uint64_t begin = 0;
    std::size_t first_chunk = 0;
  };
  std::uint64_t chunk_bytes_;
  std::vector<Span> spans_;  // and one that begins where the file ends
};

// The checksums of the chunks of consecutive bytes.
class ChunkHasher {
 public:
  explicit ChunkHasher(std::uint64_t chunk_bytes);
  ~ChunkHasher();
  ChunkHasher(const ChunkHasher&) = delete;
  ChunkHasher& operator=(const ChunkHasher&) = delete;

  void update(const void* data, std::size_t bytes);
  // Ends the current chunk, if it has begun.
  void cut();
  [[nodiscard]] const std::vector<std::uint64_t>& sums() const { return sums_; }

 private:
  struct State;
  std::uint64_t chunk_bytes_;
  std::uint64_t in_chunk_ = 0;
  std::unique_ptr<State> state_;
  std::vector<std::uint64_t> sums_;
};

// A file whose bytes are compared with their checksums before they are returned.
class VerifiedFile {
 public:
  // Checks the size at once.
  VerifiedFile(const std::filesystem::path& folder, const FileRecord& record);

  // Describes the contents of bytes [begin, end) of the file in error messages.
  using Describe = std::function<std::string(std::uint64_t begin, std::uint64_t end)>;
  void set_describe(Describe describe) { describe_ = std::move(describe); }

  // Reads bytes [offset, offset + bytes). Cheapest in rising order: the last chunk is kept.
  void read(std::uint64_t offset, void* data, std::size_t bytes);
  // A range of the file, and where to put it.
  struct Part {
    std::uint64_t offset = 0;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  // Parts in rising order that do not overlap. A chunk that they cover completely is read straight
  // into its places, without a copy.
  void read(std::span<const Part> parts);
  void verify_chunk(std::size_t chunk);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  void load_chunk(std::size_t chunk, std::span<const Part> parts);
  void take_from_chunk(std::size_t chunk, std::span<const Part> parts);

  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  FileRecord record_;
  ChunkMap map_;
  File file_;
  Describe describe_;
  std::vector<std::byte> buffer_;
  std::size_t buffered_ = none;
};

}  // namespace tessera::checkpoint
