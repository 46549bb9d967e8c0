// Collects rows, turns them, and writes their parts of the turned rows.
#include "checkpoint/formats/gguf/gguf_tile.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::size_t gguf_tile_bytes = std::size_t{2} << 20;

}  // namespace

GgufTile::GgufTile(const TensorInfo& tensor, const GgufTensor& place)
    : rows_(tensor.shape[0]),
      columns_(tensor.shape[1]),
      size_(size_of(place.type->dtype)),
      place_(place) {
  const std::size_t fitting = std::max<std::size_t>(1, gguf_tile_bytes / row_bytes());
  const auto block = static_cast<std::size_t>(place.type->block);
  tile_rows_ = (fitting + block - 1) / block * block;
}

bool GgufTile::append(File& file, const std::byte* data, std::size_t bytes,
                      std::vector<std::byte>* back) {
  bool fits = true;
  // Once and exactly: a buffer that grows has at times two or three times the bytes of a tile.
  pending_.reserve(std::min(tile_rows_, static_cast<std::size_t>(rows_)) * row_bytes());
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, tile_rows_ * row_bytes() - pending_.size());
    pending_.insert(pending_.end(), data, data + part);
    data += part;
    bytes -= part;
    const std::size_t rows = pending_.size() / row_bytes();
    const bool whole = pending_.size() % row_bytes() == 0;
    if (whole && (rows == tile_rows_ || done_ + static_cast<std::int64_t>(rows) == rows_)) {
      fits = flush(file, static_cast<std::int64_t>(rows), back) && fits;
    }
  }
  return fits;
}

// Copies rows to columns, or with `back` columns to rows.
void GgufTile::turn(std::int64_t rows, bool back) {
  turned_.resize(pending_.size());
  parallel_for(0, columns_, 16, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = first; c < last; ++c) {
        std::byte* const in_row =
            pending_.data() + static_cast<std::size_t>(r * columns_ + c) * size_;
        std::byte* const in_column =
            turned_.data() + static_cast<std::size_t>(c * rows + r) * size_;
        std::memcpy(back ? in_row : in_column, back ? in_column : in_row, size_);
      }
    }
  });
}

bool GgufTile::flush(File& file, std::int64_t rows, std::vector<std::byte>* back) {
  const GgufType& type = *place_.type;
  turn(rows, false);
  bool fits = true;
  const std::byte* out = turned_.data();
  if (type.is_quantised()) {
    const std::int64_t blocks = rows * columns_ / type.block;
    encoded_.resize(static_cast<std::size_t>(type.bytes_of(rows * columns_)));
    auto* const values = reinterpret_cast<float*>(turned_.data());
    fits = encode_blocks(type, values, encoded_.data(), blocks);
    if (back != nullptr) {
      type.decode(encoded_.data(), values, blocks);
      turn(rows, true);
      back->insert(back->end(), pending_.begin(), pending_.end());
    }
    out = encoded_.data();
  }
  const auto run = static_cast<std::size_t>(type.bytes_of(rows));
  if (rows == rows_) file.write_at(place_.begin, out, run * static_cast<std::size_t>(columns_));
  for (std::int64_t c = 0; c < columns_ && rows < rows_; ++c) {
    file.write_at(place_.begin + type.bytes_of(c * rows_ + done_),
                  out + static_cast<std::size_t>(c) * run, run);
  }
  done_ += rows;
  pending_.clear();
  return fits;
}

}  // namespace tessera::checkpoint::formats
