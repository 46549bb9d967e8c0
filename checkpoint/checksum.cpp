// XXH3 by chunk.
#include "checkpoint/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "kernels/base/error.h"

namespace tessera::checkpoint {

std::uint64_t checksum(const void* data, std::size_t bytes) {
  return XXH3_64bits(data, bytes);
}

std::uint64_t checksum(std::string_view text) {
  return checksum(text.data(), text.size());
}

std::uint64_t chunk_bytes_of(std::uint64_t file_bytes) {
  std::uint64_t chunk = std::uint64_t{1} << 20;
  while (chunk_count(file_bytes, chunk) > 16384) chunk *= 2;
  return chunk;
}

std::uint64_t chunk_count(std::uint64_t file_bytes, std::uint64_t chunk_bytes) {
  return file_bytes / chunk_bytes + (file_bytes % chunk_bytes != 0 ? 1 : 0);
}

VerifiedFile::VerifiedFile(const std::filesystem::path& folder, const FileRecord& record)
    : record_(record), file_(File::open_for_reading(folder / record.name)) {
  const std::uint64_t bytes = file_.size();
  TESSERA_CHECK(bytes == record.bytes, ErrorCode::checkpoint,
                "'{}' has {} bytes, its manifest says {}: the file is {} or from another save",
                path().string(), bytes, record.bytes,
                bytes < record.bytes ? "truncated" : "damaged");
}

std::size_t VerifiedFile::size_of_chunk(std::size_t chunk) const {
  return static_cast<std::size_t>(
      std::min(record_.chunk_bytes, record_.bytes - chunk * record_.chunk_bytes));
}

void VerifiedFile::load_chunk(std::size_t chunk, void* data) {
  const std::uint64_t begin = chunk * record_.chunk_bytes;
  const std::size_t bytes = size_of_chunk(chunk);
  file_.read_at(begin, data, bytes);
  if (checksum(data, bytes) == record_.chunks[chunk]) return;
  const std::string holds =
      describe_ ? fmt::format(" ({})", describe_(begin, begin + bytes)) : std::string();
  fail(ErrorCode::checkpoint,
       "'{}' is damaged: bytes {} to {}{} do not match their checksum; use another checkpoint",
       path().string(), begin, begin + bytes, holds);
}

void VerifiedFile::verify_chunk(std::size_t chunk) {
  buffered_ = none;
  buffer_.resize(size_of_chunk(chunk));
  load_chunk(chunk, buffer_.data());
  buffered_ = chunk;
}

void VerifiedFile::read(std::uint64_t offset, void* data, std::size_t bytes) {
  TESSERA_REQUIRE(offset <= record_.bytes && bytes <= record_.bytes - offset,
                  "bytes [{}, {}) are not in '{}'", offset, offset + bytes, path().string());
  auto* out = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const auto chunk = static_cast<std::size_t>(offset / record_.chunk_bytes);
    const auto inside = static_cast<std::size_t>(offset % record_.chunk_bytes);
    const std::size_t whole = size_of_chunk(chunk);
    const std::size_t part = std::min(bytes, whole - inside);
    if (part == whole && buffered_ != chunk) {
      load_chunk(chunk, out);  // verified where it belongs, without a copy
    } else {
      if (buffered_ != chunk) verify_chunk(chunk);
      std::memcpy(out, buffer_.data() + inside, part);
    }
    out += part;
    offset += part;
    bytes -= part;
  }
}

}  // namespace tessera::checkpoint
