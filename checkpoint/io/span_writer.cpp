// Slices small enough to be in the processor's cache when their checksum is taken.
#include "checkpoint/io/span_writer.h"

#include <algorithm>

namespace tessera::checkpoint {
namespace {

constexpr std::size_t slice_bytes = std::size_t{1} << 20;
constexpr std::size_t small_bytes = std::size_t{64} << 10;
// How much may be dirty before the disk is told, and how much may be told before it is waited for.
// At one megabyte a second, a disk that most would call broken, that is half a minute a call.
constexpr std::uint64_t window_bytes = std::uint64_t{32} << 20;

}  // namespace

SpanWriter::SpanWriter(File& file, std::uint64_t chunk_bytes) : file_(file), hasher_(chunk_bytes) {
  gathered_.reserve(slice_bytes);
}

void SpanWriter::begin(std::uint64_t offset) {
  flush();
  hasher_.cut();
  offset_ = offset;
  if (untold_bytes_ == 0) untold_ = offset;
}

void SpanWriter::put(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, slice_bytes);
    if (part < small_bytes) {
      if (gathered_.size() + part > slice_bytes) flush();
      gathered_.insert(gathered_.end(), next, next + part);
    } else {
      flush();
      write(next, part);
    }
    next += part;
    bytes -= part;
  }
}

void SpanWriter::flush() {
  if (gathered_.empty()) return;
  write(gathered_.data(), gathered_.size());
  gathered_.clear();
}

void SpanWriter::write(const std::byte* data, std::size_t bytes) {
  hasher_.update(data, bytes);
  file_.write_at(offset_, data, bytes);
  offset_ += bytes;
  untold_bytes_ += bytes;
  if (untold_bytes_ >= window_bytes) write_behind();
}

// The disk is told of what is new, and what it was told of before is waited for. Between this
// writer's runs may be other ranks' bytes: no harm.
void SpanWriter::write_behind() {
  file_.begin_writeback(untold_, offset_ - untold_);
  if (told_end_ > told_) file_.await_writeback(told_, told_end_ - told_);
  told_ = untold_;
  told_end_ = offset_;
  untold_ = offset_;
  untold_bytes_ = 0;
}

std::vector<std::uint64_t> SpanWriter::finish() {
  flush();
  hasher_.cut();
  return hasher_.sums();
}

}  // namespace tessera::checkpoint
