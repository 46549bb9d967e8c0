// Reads a stored matrix as codes of base/quantized.h, or as the numbers of these. Any range of the
// result can be read: its bytes are those of the whole matrix, so they do not depend on the ranks
// among which the matrix is divided.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/state/state.h"
#include "checkpoint/state/transfer.h"

namespace tessera::checkpoint {

// Used by one thread. A read of codes reads their elements; the first read of a scale of nf4 reads
// the whole matrix once, because all scales have one mean. Memory: a few MiB, and five bytes for
// each of the matrix's scales.
class QuantizingReader {
 public:
  // Reads elements [first, first + count) in row-major order, in `stored`.
  using ReadElements = std::function<void(std::int64_t first, std::int64_t count, std::byte* out)>;
  // `name` is for messages: Error(checkpoint) for an element that is not finite.
  QuantizingReader(std::string name, const QuantizedFrom& matrix, DType stored, ReadElements read);

  [[nodiscard]] std::int64_t bytes() const;
  // Bytes [first, first + count) of the codes.
  void read_codes(std::int64_t first, std::int64_t count, std::byte* out);
  // Elements [first, first + count) as fp32.
  void read_numbers(std::int64_t first, std::int64_t count, float* out);

 private:
  [[nodiscard]] std::int64_t elements() const { return rows_ * columns_; }
  const float* load(std::int64_t first, std::int64_t count);
  void encode(std::int64_t first_block, std::int64_t blocks, std::byte* codes);
  [[nodiscard]] const std::vector<std::byte>& scales();
  void read_nf4(std::int64_t first, std::int64_t count, std::byte* out);
  void read_nf4_numbers(std::int64_t first, std::int64_t count, float* out);
  void read_int8(std::int64_t first, std::int64_t count, std::byte* out);
  void encode_row(std::int64_t row, std::byte* codes);
  [[nodiscard]] float scale_of_row(std::int64_t row);

  std::string name_;
  QuantizedFormat format_;
  std::int64_t rows_, columns_;
  DType stored_;
  ReadElements read_;
  std::vector<std::byte> raw_;
  std::vector<float> values_;
  // The largest magnitude of each block, or the scale of each row; negative until it is encoded.
  std::vector<float> known_;
  std::vector<std::byte> scales_;  // nf4: all that follows the codes of elements
  std::vector<std::byte> row_;     // int8: the codes of row_index_
  std::int64_t row_index_ = -1;
};

// Fills the pieces of a tensor that is to be quantised.
void load_quantized(const LogicalTensor& tensor, DType stored,
                    const QuantizingReader::ReadElements& read, Staging& staging);

// The shape that the tensor has in a file, and whether elements stored as `stored` can fill it.
const std::vector<std::int64_t>& stored_shape(const LogicalTensor& tensor);
bool can_load(DType stored, const LogicalTensor& tensor);

}  // namespace tessera::checkpoint
