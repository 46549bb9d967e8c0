// XXH3 by chunk.
#include "checkpoint/io/checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/error.h"
#include "base/xxh3.h"

namespace tessera::checkpoint {
namespace {

// A system call costs about as much as copying this many bytes.
constexpr std::size_t smallest_read = std::size_t{32} << 10;

}  // namespace

std::uint64_t checksum(const void* data, std::size_t bytes) {
  return XXH3_64bits(data, bytes);
}

std::uint64_t checksum(std::string_view text) {
  return checksum(text.data(), text.size());
}

std::string to_hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

bool is_hex_id(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == text.npos;
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

// Reads all of a chunk into its places, part by part, and verifies it there.
void VerifiedFile::load_chunk(std::size_t chunk, std::span<const Part> parts) {
  const ChunkMap::Range range = map_.range(chunk);
  ChunkHasher hasher(range.end - range.begin);
  for (const Part& part : parts) {
    file_.read_at(part.offset, part.data, part.bytes);
    hasher.update(part.data, part.bytes);
  }
  if (hasher.sums().at(0) == record_.chunks[chunk]) return;
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
  const Part whole{range.begin, buffer_.data(), buffer_.size()};
  load_chunk(chunk, {&whole, 1});
  buffered_ = chunk;
}

void VerifiedFile::take_from_chunk(std::size_t chunk, std::span<const Part> parts) {
  const ChunkMap::Range range = map_.range(chunk);
  std::size_t wanted = 0;
  for (const Part& part : parts) wanted += part.bytes;
  const bool has_all = wanted == range.end - range.begin;
  if (buffered_ != chunk && has_all &&
      (parts.size() == 1 || wanted / parts.size() >= smallest_read))
    return load_chunk(chunk, parts);
  if (buffered_ != chunk) verify_chunk(chunk);
  for (const Part& part : parts) {
    std::memcpy(part.data, buffer_.data() + (part.offset - range.begin), part.bytes);
  }
}

void VerifiedFile::read(std::uint64_t offset, void* data, std::size_t bytes) {
  const Part part{offset, static_cast<std::byte*>(data), bytes};
  read({&part, 1});
}

void VerifiedFile::read(std::span<const Part> parts) {
  std::vector<Part> of_chunk;
  std::size_t chunk = none;
  std::uint64_t before = 0;
  for (Part part : parts) {
    TESSERA_REQUIRE(part.offset <= record_.bytes && part.bytes <= record_.bytes - part.offset,
                    "bytes [{}, {}) are not in '{}'", part.offset, part.offset + part.bytes,
                    path().string());
    TESSERA_REQUIRE(part.offset >= before, "byte {} of '{}' is asked for after byte {}",
                    part.offset, path().string(), before);
    before = part.offset + part.bytes;
    while (part.bytes > 0) {
      const std::size_t next = map_.at(part.offset);
      if (next != chunk && !of_chunk.empty()) {
        take_from_chunk(chunk, of_chunk);
        of_chunk.clear();
      }
      chunk = next;
      const auto left = static_cast<std::size_t>(map_.range(chunk).end - part.offset);
      const std::size_t taken = std::min(part.bytes, left);
      of_chunk.push_back({part.offset, part.data, taken});
      part = {part.offset + taken, part.data + taken, part.bytes - taken};
    }
  }
  if (!of_chunk.empty()) take_from_chunk(chunk, of_chunk);
}

}  // namespace tessera::checkpoint
