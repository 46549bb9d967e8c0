// A record batch of Arrow IPC: the lengths of its columns and the places of their buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tasks/columnar/arrow/arrow_codec.h"
#include "tasks/columnar/arrow/arrow_input.h"
#include "tasks/columnar/arrow/flat_table.h"

namespace tessera::tasks {

// Buffers are read in the parts that are asked for; a compressed one is held whole, up to 1 GiB.
// Not safe to use from several threads.
class ArrowBatch {
 public:
  ArrowBatch() = default;
  // `header` is a RecordBatch of Message.fbs. Throws Error(data) that begins with `what` if a
  // buffer is outside the body.
  ArrowBatch(const FlatTable& header, std::unique_ptr<ArrowBytes> body, std::string what);

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] const std::string& what() const { return what_; }
  // The length of a column. Error(data) if the batch has no such column.
  [[nodiscard]] std::int64_t length(std::size_t node) const;
  // The number of buffers of the text view with this number.
  [[nodiscard]] std::int64_t view_buffers(std::size_t view) const;
  // The bytes of the values after decompression. Error(data) if the batch has no such buffer.
  [[nodiscard]] std::int64_t bytes(std::size_t buffer) const;
  // Error(data) if the range is not within the buffer.
  void read(std::size_t buffer, std::int64_t first, void* out, std::int64_t bytes) const;

 private:
  struct Place {
    std::int64_t begin;
    std::int64_t bytes;
  };
  [[nodiscard]] Place place(std::size_t buffer) const;
  // Memory that is not touched costs nothing, whatever size a damaged file claims.
  struct Held {
    std::unique_ptr<char[]> values;
    std::int64_t bytes = 0;
  };
  [[nodiscard]] const Held* held(std::size_t buffer) const;

  std::int64_t rows_ = 0;
  std::vector<std::int64_t> lengths_;
  std::vector<Place> buffers_;
  std::vector<std::int64_t> view_buffers_;
  ArrowCodec codec_ = ArrowCodec::none;
  std::unique_ptr<ArrowBytes> body_;
  std::string what_;
  mutable std::map<std::size_t, Held> decompressed_;
};

}  // namespace tessera::tasks
