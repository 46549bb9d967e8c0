// XXH3 by chunk.
#include "checkpoint/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <new>

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

ChunkMap::ChunkMap(std::uint64_t file_bytes, std::uint64_t chunk_bytes,
                   std::vector<std::uint64_t> cuts)
    : chunk_bytes_(chunk_bytes) {
  std::uint64_t begin = 0;
  std::size_t chunks = 0;
  cuts.push_back(file_bytes);
  for (const std::uint64_t end : cuts) {
    TESSERA_CHECK(begin <= end && end <= file_bytes, ErrorCode::checkpoint,
                  "chunks begin anew at byte {}, after byte {} of {}", end, begin, file_bytes);
    spans_.push_back({begin, chunks});
    chunks += static_cast<std::size_t>(chunk_count(end - begin, chunk_bytes));
    begin = end;
  }
  spans_.push_back({begin, chunks});
}

ChunkMap::Range ChunkMap::range(std::size_t chunk) const {
  const auto next = std::upper_bound(
      spans_.begin(), spans_.end(), chunk,
      [](std::size_t wanted, const Span& span) { return wanted < span.first_chunk; });
  const Span& span = *(next - 1);
  const std::uint64_t begin = span.begin + (chunk - span.first_chunk) * chunk_bytes_;
  return {begin, std::min(begin + chunk_bytes_, next->begin)};
}

std::size_t ChunkMap::at(std::uint64_t offset) const {
  const auto next =
      std::upper_bound(spans_.begin(), spans_.end(), offset,
                       [](std::uint64_t wanted, const Span& span) { return wanted < span.begin; });
  const Span& span = *(next - 1);
  return span.first_chunk + static_cast<std::size_t>((offset - span.begin) / chunk_bytes_);
}

struct ChunkHasher::State {
  State() : xxh3(XXH3_createState()) {
    if (xxh3 == nullptr) throw std::bad_alloc();
  }
  ~State() { XXH3_freeState(xxh3); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  XXH3_state_t* xxh3;
};

ChunkHasher::ChunkHasher(std::uint64_t chunk_bytes)
    : chunk_bytes_(chunk_bytes), state_(std::make_unique<State>()) {
  XXH3_64bits_reset(state_->xxh3);
}

ChunkHasher::~ChunkHasher() = default;

void ChunkHasher::update(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const auto part =
        static_cast<std::size_t>(std::min<std::uint64_t>(bytes, chunk_bytes_ - in_chunk_));
    XXH3_64bits_update(state_->xxh3, next, part);
    in_chunk_ += part;
    next += part;
    bytes -= part;
    if (in_chunk_ == chunk_bytes_) cut();
  }
}

void ChunkHasher::cut() {
  if (in_chunk_ == 0) return;
  sums_.push_back(XXH3_64bits_digest(state_->xxh3));
  XXH3_64bits_reset(state_->xxh3);
  in_chunk_ = 0;
}

VerifiedFile::VerifiedFile(const std::filesystem::path& folder, const FileRecord& record)
    : record_(record),
      map_(record.bytes, record.chunk_bytes, record.cuts),
      file_(File::open_for_reading(folder / record.name)) {
  const std::uint64_t bytes = file_.size();
  TESSERA_CHECK(bytes == record.bytes, ErrorCode::checkpoint,
                "'{}' has {} bytes, its manifest says {}: the file is {} or from another save",
                path().string(), bytes, record.bytes,
                bytes < record.bytes ? "truncated" : "damaged");
}

void VerifiedFile::load_chunk(std::size_t chunk, void* data) {
  const ChunkMap::Range range = map_.range(chunk);
  const auto bytes = static_cast<std::size_t>(range.end - range.begin);
  file_.read_at(range.begin, data, bytes);
  if (checksum(data, bytes) == record_.chunks[chunk]) return;
  const std::string holds =
      describe_ ? fmt::format(" ({})", describe_(range.begin, range.end)) : std::string();
  fail(ErrorCode::checkpoint,
       "'{}' is damaged: bytes {} to {}{} do not match their checksum; use another checkpoint",
       path().string(), range.begin, range.end, holds);
}

void VerifiedFile::verify_chunk(std::size_t chunk) {
  const ChunkMap::Range range = map_.range(chunk);
  buffered_ = none;
  buffer_.resize(static_cast<std::size_t>(range.end - range.begin));
  load_chunk(chunk, buffer_.data());
  buffered_ = chunk;
}

void VerifiedFile::read(std::uint64_t offset, void* data, std::size_t bytes) {
  TESSERA_REQUIRE(offset <= record_.bytes && bytes <= record_.bytes - offset,
                  "bytes [{}, {}) are not in '{}'", offset, offset + bytes, path().string());
  auto* out = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::size_t chunk = map_.at(offset);
    const ChunkMap::Range range = map_.range(chunk);
    const auto inside = static_cast<std::size_t>(offset - range.begin);
    const auto whole = static_cast<std::size_t>(range.end - range.begin);
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
