// Turns rows of [in, out] into the rows of [out, in], many at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/formats/format.h"
#include "checkpoint/formats/gguf/gguf_header.h"

namespace tessera::checkpoint::formats {

// One tensor on its way into a file. Memory: three times the rows of a block of the type, or of
// 2 MiB if that is more.
class GgufTile {
 public:
  // `tensor` as it comes, `place` in the file, with its shape turned. `place` must outlive the
  // tile.
  GgufTile(const TensorInfo& tensor, const GgufTensor& place);

  // False if a value does not fit the type. Adds to `back`, if it is not null, the values of
  // quantised rows that were written, as a reader gets them.
  bool append(File& file, const std::byte* data, std::size_t bytes, std::vector<std::byte>* back);

 private:
  [[nodiscard]] std::size_t row_bytes() const { return static_cast<std::size_t>(columns_) * size_; }
  void turn(std::int64_t rows, bool back);
  bool flush(File& file, std::int64_t rows, std::vector<std::byte>* back);

  std::int64_t rows_, columns_;
  std::size_t size_;
  const GgufTensor& place_;
  std::size_t tile_rows_ = 0;
  std::int64_t done_ = 0;  // rows
  std::vector<std::byte> pending_, turned_, encoded_;
};

}  // namespace tessera::checkpoint::formats
