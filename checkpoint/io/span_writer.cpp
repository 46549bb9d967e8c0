// Writes in slices that are still in the processor's cache when their checksum is computed.
#include "checkpoint/io/span_writer.h"

#include <algorithm>

namespace tessera::checkpoint {
namespace {

constexpr std::size_t slice_bytes = std::size_t{1} << 20;
constexpr std::size_t small_bytes = std::size_t{64} << 10;
// Bytes that may be dirty before writeback starts, and bytes in writeback before it is awaited. At
// 1 MB/s, the speed of a nearly broken disk, a call takes half a minute.
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

// Starts writeback of new bytes and waits for the range started before. Other ranks' bytes may lie
// between this writer's runs, which is harmless.
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
