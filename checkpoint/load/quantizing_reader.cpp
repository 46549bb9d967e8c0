// Encodes blocks of a matrix as they are read.
#include "checkpoint/load/quantizing_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "checkpoint/state/transfer.h"
#include "kernels/blocks.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

constexpr std::int64_t quantized_slice = std::int64_t{1} << 18;  // elements at a time

[[noreturn]] void fail_as_not_finite(const std::string& name) {
  fail(
      ErrorCode::checkpoint,
      "'{}' has an element that is not finite and cannot be quantised; the file is damaged, or its "
      "training has failed",
      name);
}

}  // namespace

QuantizingReader::QuantizingReader(std::string name, const QuantizedFrom& matrix, DType stored,
                                   ReadElements read)
    : name_(std::move(name)),
      format_(matrix.format),
      rows_(matrix.shape.at(0)),
      columns_(matrix.shape.at(1)),
      stored_(stored),
      read_(std::move(read)) {
  TESSERA_REQUIRE(matrix.shape.size() == 2 && can_quantize(rows_, columns_) && is_floating(stored),
                  "'{}' cannot be quantised", name_);
  const std::int64_t scales = format_ == QuantizedFormat::nf4 ? elements() / nf4_block : rows_;
  known_.assign(static_cast<std::size_t>(scales), -1.0f);
}

std::int64_t QuantizingReader::bytes() const {
  return quantized_bytes(format_, rows_, columns_);
}

// Elements as fp32, valid until the next call.
const float* QuantizingReader::load(std::int64_t first, std::int64_t count) {
  raw_.resize(static_cast<std::size_t>(count) * size_of(stored_));
  values_.resize(static_cast<std::size_t>(count));
  read_(first, count, raw_.data());
  kernels::cpu::cast({.in = raw_.data(),
                      .out = values_.data(),
                      .n = count,
                      .in_dtype = stored_,
                      .out_dtype = float32});
  return values_.data();
}

void QuantizingReader::encode(std::int64_t first_block, std::int64_t blocks, std::byte* codes) {
  const float* const values = load(first_block * nf4_block, blocks * nf4_block);
  float* const largest = known_.data() + first_block;
  kernels::cpu::encode_nf4(values, codes, largest, blocks);
  const auto is_finite = [](float scale) { return std::isfinite(scale); };
  if (!std::all_of(largest, largest + blocks, is_finite)) fail_as_not_finite(name_);
}

// Blocks whose codes were read before are not encoded again; the codes of others are dropped.
const std::vector<std::byte>& QuantizingReader::scales() {
  if (!scales_.empty()) return scales_;
  const Nf4Layout layout(elements());
  constexpr std::int64_t step = quantized_slice / nf4_block;
  std::vector<std::byte> codes(static_cast<std::size_t>(quantized_slice / 2));
  const auto is_known = [](float largest) { return largest >= 0; };
  for (auto from = known_.begin(); from != known_.end();) {
    from = std::find_if_not(from, known_.end(), is_known);
    const auto end = std::find_if(from, known_.end(), is_known);
    while (from != end) {
      const std::int64_t blocks = std::min<std::int64_t>(step, end - from);
      encode(from - known_.begin(), blocks, codes.data());
      from += blocks;
    }
  }
  std::vector<std::byte> scales(static_cast<std::size_t>(layout.bytes - layout.scale_codes));
  kernels::cpu::encode_nf4_scales(known_.data(), elements(), scales.data());
  scales_ = std::move(scales);
  return scales_;
}

void QuantizingReader::read_nf4(std::int64_t first, std::int64_t count, std::byte* out) {
  const Nf4Layout layout(elements());
  constexpr std::int64_t bytes_of_block = nf4_block / 2;
  constexpr std::int64_t step = quantized_slice / nf4_block;
  std::vector<std::byte> codes;
  const std::int64_t end = first + count;
  while (first < std::min(end, layout.scale_codes)) {
    const std::int64_t block = first / bytes_of_block;
    const std::int64_t last = (std::min(end, layout.scale_codes) - 1) / bytes_of_block;
    const std::int64_t blocks = std::min(step, last + 1 - block);
    codes.resize(static_cast<std::size_t>(blocks * bytes_of_block));
    encode(block, blocks, codes.data());
    const std::int64_t skip = first - block * bytes_of_block;
    const std::int64_t part = std::min(end, (block + blocks) * bytes_of_block) - first;
    std::memcpy(out, codes.data() + skip, static_cast<std::size_t>(part));
    out += part;
    first += part;
  }
  if (first >= end) return;
  std::memcpy(out, scales().data() + (first - layout.scale_codes),
              static_cast<std::size_t>(end - first));
}

void QuantizingReader::encode_row(std::int64_t row, std::byte* codes) {
  const float scale =
      kernels::cpu::encode_int8_row(load(row * columns_, columns_), codes, columns_);
  if (!std::isfinite(scale)) fail_as_not_finite(name_);
  known_[static_cast<std::size_t>(row)] = scale;
}

float QuantizingReader::scale_of_row(std::int64_t row) {
  const float& scale = known_[static_cast<std::size_t>(row)];
  if (scale < 0) {
    row_index_ = -1;
    encode_row(row, row_.data());
    row_index_ = row;
  }
  return scale;
}

// A row is encoded as a whole, for its scale.
void QuantizingReader::read_int8(std::int64_t first, std::int64_t count, std::byte* out) {
  row_.resize(static_cast<std::size_t>(columns_));
  const std::int64_t end = first + count;
  while (first < std::min(end, elements())) {
    const std::int64_t row = first / columns_, skip = first % columns_;
    const std::int64_t part = std::min(columns_ - skip, end - first);
    if (row != row_index_) {
      row_index_ = -1;
      encode_row(row, row_.data());
      row_index_ = row;
    }
    std::memcpy(out, row_.data() + skip, static_cast<std::size_t>(part));
    out += part;
    first += part;
  }
  while (first < end) {
    const std::int64_t place = first - elements(), skip = place % 4;
    const std::int64_t part = std::min(4 - skip, end - first);
    const auto bytes = std::bit_cast<std::array<std::byte, 4>>(scale_of_row(place / 4));
    std::memcpy(out, bytes.data() + skip, static_cast<std::size_t>(part));
    out += part;
    first += part;
  }
}

void QuantizingReader::read_codes(std::int64_t first, std::int64_t count, std::byte* out) {
  if (format_ == QuantizedFormat::nf4) return read_nf4(first, count, out);
  read_int8(first, count, out);
}

// The numbers of the kernel `dequantize`.
void QuantizingReader::read_nf4_numbers(std::int64_t first, std::int64_t count, float* out) {
  const Nf4Layout layout(elements());
  const std::byte* const codes_of_scales = scales().data();
  const auto float_at = [&](std::int64_t place) {
    float value = 0;
    std::memcpy(&value, codes_of_scales + (place - layout.scale_codes), sizeof(value));
    return value;
  };
  const float mean = float_at(layout.mean);
  std::vector<std::byte> codes(static_cast<std::size_t>(count / 2 + 1));
  const std::int64_t first_byte = first / 2;
  read_nf4(first_byte, (first + count + 1) / 2 - first_byte, codes.data());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t element = first + i, block = element / nf4_block;
    const auto of_scale = std::to_integer<std::size_t>(codes_of_scales[block]);
    const float scale =
        nf4_scale_codes[of_scale] * float_at(layout.group_factors + 4 * (block / nf4_group)) + mean;
    const auto pair =
        std::to_integer<std::size_t>(codes[static_cast<std::size_t>(element / 2 - first_byte)]);
    out[i] = nf4_values[element % 2 == 0 ? pair >> 4 : pair & 15] * scale;
  }
}

void QuantizingReader::read_numbers(std::int64_t first, std::int64_t count, float* out) {
  if (format_ == QuantizedFormat::nf4) return read_nf4_numbers(first, count, out);
  std::vector<std::byte> codes(static_cast<std::size_t>(columns_));
  for (const std::int64_t end = first + count; first < end;) {
    const std::int64_t skip = first % columns_;
    const std::int64_t part = std::min(columns_ - skip, end - first);
    const std::int64_t row = first / columns_;
    encode_row(row, codes.data());
    const float scale = known_[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < part; ++i) {
      const auto code = std::to_integer<std::int8_t>(codes[static_cast<std::size_t>(skip + i)]);
      *out++ = static_cast<float>(code) * scale;
    }
    first += part;
  }
}

void load_quantized(const LogicalTensor& tensor, DType stored,
                    const QuantizingReader::ReadElements& read, Staging& staging) {
  QuantizingReader reader(tensor.name, tensor.quantized.value(), stored, read);
  const bool codes = tensor.dtype == uint8;
  const DType given = codes ? uint8 : float32;
  for (const Piece& piece : tensor.pieces) {
    const auto get = [&](std::uint64_t offset, void* data, std::size_t bytes) {
      if (codes) {
        reader.read_codes(piece.first + static_cast<std::int64_t>(offset),
                          static_cast<std::int64_t>(bytes), static_cast<std::byte*>(data));
      } else {
        reader.read_numbers(piece.first + static_cast<std::int64_t>(offset / sizeof(float)),
                            static_cast<std::int64_t>(bytes / sizeof(float)),
                            static_cast<float*>(data));
      }
    };
    if (piece.file) {
      staging.load(piece.file, piece.count, given, tensor.dtype, get);
    } else {
      staging.load(piece.data, piece.device, piece.count, given, tensor.dtype, get);
    }
  }
}

const std::vector<std::int64_t>& stored_shape(const LogicalTensor& tensor) {
  return tensor.quantized ? tensor.quantized->shape : tensor.shape;
}

bool can_load(DType stored, const LogicalTensor& tensor) {
  return tensor.quantized ? is_floating(stored) : can_convert(stored, tensor.dtype);
}

}  // namespace tessera::checkpoint
