// The lists of a RecordBatch, and reads within its buffers.
#include "tasks/columnar/arrow/arrow_batch.h"

#include <span>
#include <utility>

#include "base/error.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t largest_compressed = std::int64_t{1} << 30;
constexpr std::int64_t longest_column = std::int64_t{1} << 47;  // sizes of it do not overflow
constexpr std::int64_t highest_ratio = 65536;  // Zstandard: 128 KiB of one byte take 4 bytes

ArrowCodec codec_of(const FlatTable& header, const std::string& what) {
  const auto compression = header.table(3);
  if (!compression) return ArrowCodec::none;
  const auto codec = compression->number<std::int8_t>(0, 0);
  TESSERA_CHECK((codec == 0 || codec == 1) && compression->number<std::int8_t>(1, 0) == 0,
                ErrorCode::data, "{}: compressed in a way that this version does not know", what);
  return codec == 0 ? ArrowCodec::lz4_frame : ArrowCodec::zstd;
}

}  // namespace

ArrowBatch::ArrowBatch(const FlatTable& header, std::unique_ptr<ArrowBytes> body, std::string what)
    : rows_(header.number<std::int64_t>(0, 0)),
      codec_(codec_of(header, what)),
      body_(std::move(body)),
      what_(std::move(what)) {
  TESSERA_CHECK(rows_ >= 0 && rows_ <= longest_column, ErrorCode::data, "{}: a batch of {} rows",
                what_, rows_);
  const FlatVector nodes = header.vector(1, 16);
  for (std::size_t i = 0; i < nodes.count; ++i) {
    lengths_.push_back(flat_number<std::int64_t>(nodes, 16 * i));
    TESSERA_CHECK(lengths_.back() >= 0 && lengths_.back() <= longest_column, ErrorCode::data,
                  "{}: a column of {} rows", what_, lengths_.back());
  }
  const FlatVector buffers = header.vector(2, 16);
  for (std::size_t i = 0; i < buffers.count; ++i) {
    const Place place{flat_number<std::int64_t>(buffers, 16 * i),
                      flat_number<std::int64_t>(buffers, 16 * i + 8)};
    TESSERA_CHECK(place.begin >= 0 && place.bytes >= 0 && place.begin <= body_->size() &&
                      place.bytes <= body_->size() - place.begin,
                  ErrorCode::data, "{}: a buffer is outside its batch", what_);
    buffers_.push_back(place);
  }
  const FlatVector views = header.vector(4, 8);
  for (std::size_t i = 0; i < views.count; ++i) {
    view_buffers_.push_back(flat_number<std::int64_t>(views, 8 * i));
    TESSERA_CHECK(
        view_buffers_.back() >= 0 && std::cmp_less_equal(view_buffers_.back(), buffers_.size()),
        ErrorCode::data, "{}: a view of {} buffers", what_, view_buffers_.back());
  }
}

std::int64_t ArrowBatch::length(std::size_t node) const {
  TESSERA_CHECK(node < lengths_.size(), ErrorCode::data, "{}: a batch lacks a column", what_);
  return lengths_[node];
}

std::int64_t ArrowBatch::view_buffers(std::size_t view) const {
  TESSERA_CHECK(view < view_buffers_.size(), ErrorCode::data,
                "{}: a batch lacks the number of a view's buffers", what_);
  return view_buffers_[view];
}

ArrowBatch::Place ArrowBatch::place(std::size_t buffer) const {
  TESSERA_CHECK(buffer < buffers_.size(), ErrorCode::data, "{}: a batch lacks a buffer", what_);
  return buffers_[buffer];
}

// The buffer's values if it is compressed.
const ArrowBatch::Held* ArrowBatch::held(std::size_t buffer) const {
  const Place at = place(buffer);
  if (codec_ == ArrowCodec::none || at.bytes == 0) return nullptr;
  const auto known = decompressed_.find(buffer);
  if (known != decompressed_.end()) return &known->second;
  // Before the bytes: the size of the values, or -1 for bytes that are not compressed.
  std::int64_t size = 0;
  const auto head = static_cast<std::int64_t>(sizeof(size));
  TESSERA_CHECK(at.bytes >= head, ErrorCode::data, "{}: a compressed buffer of {} bytes", what_,
                at.bytes);
  body_->read(at.begin, &size, sizeof(size));
  const std::int64_t raw_size = at.bytes - head;
  if (size == 0 && raw_size == 0) return &decompressed_[buffer];  // as Arrow Java writes it
  const bool plain = size == -1;
  if (plain) size = raw_size;
  TESSERA_CHECK(size >= 0 && size <= largest_compressed && raw_size <= largest_compressed,
                ErrorCode::data,
                "{}: a compressed buffer of {} bytes; write smaller batches, of at most {}", what_,
                size, largest_compressed);
  TESSERA_CHECK(size / highest_ratio <= raw_size, ErrorCode::data,
                "{}: a compressed buffer is damaged", what_);
  Held values{std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(size)), size};
  if (plain) {
    body_->read(at.begin + head, values.values.get(), static_cast<std::size_t>(size));
  } else {
    std::vector<char> raw(static_cast<std::size_t>(raw_size));
    body_->read(at.begin + head, raw.data(), raw.size());
    TESSERA_CHECK(decompress(codec_, raw, {values.values.get(), static_cast<std::size_t>(size)}),
                  ErrorCode::data, "{}: a compressed buffer is damaged", what_);
  }
  return &(decompressed_[buffer] = std::move(values));
}

std::int64_t ArrowBatch::bytes(std::size_t buffer) const {
  const Held* const values = held(buffer);
  return values != nullptr ? values->bytes : place(buffer).bytes;
}

void ArrowBatch::read(std::size_t buffer, std::int64_t first, void* out, std::int64_t count) const {
  const std::int64_t all = bytes(buffer);
  TESSERA_CHECK(first >= 0 && count >= 0 && first <= all && count <= all - first, ErrorCode::data,
                "{}: a column's values are outside their buffer", what_);
  if (count == 0) return;
  if (const Held* const values = held(buffer)) {
    std::memcpy(out, values->values.get() + first, static_cast<std::size_t>(count));
    return;
  }
  body_->read(place(buffer).begin + first, out, static_cast<std::size_t>(count));
}

}  // namespace tessera::tasks
