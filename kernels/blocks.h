// Quantised blocks of GGUF files, on the CPU: the layouts of ggml's types of the same names; and at
// the end, those of frozen weights. A block holds 32 or 256 neighbouring elements of a row as small
// integers with their scales.
//
// `values` are fp32, `encoded` bytes without alignment; both hold `blocks` whole blocks. The
// caller's thread computes. All instruction sets give the same bytes.
//
// encode_...() returns false if a value is not finite or too large for the scales; the result is
// then not to be used. A block whose scales round to 0 in float16 becomes zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::kernels::cpu {

// A type of blocks: its elements and bytes, and its two functions.
struct BlockCodec {
  std::int64_t elements;
  std::size_t bytes;
  bool (*encode)(const float* values, std::byte* encoded, std::int64_t blocks);
  void (*decode)(const std::byte* encoded, float* values, std::int64_t blocks);
};

// x = d q. float16 d, int8 q[32]: the largest magnitude has q = 127, halves are rounded away from
// 0. The bytes of ggml's quantize_row_q8_0_ref.
BlockCodec q8_0_codec();

// x = d (q - 8). float16 d, 4-bit q[32]: the first element of the largest magnitude has q = 0. Byte
// i holds elements i and i + 16. The bytes of ggml's quantize_row_q4_0_ref.
BlockCodec q4_0_codec();

// x = d s q - e m in groups of 32. float16 d and e, eight pairs of 6-bit s and m, 4-bit q[256]. The
// integers minimise the sum of squared errors over the candidates that are tried.
BlockCodec q4_k_codec();

// x = d s (q - 32) in groups of 16. 6-bit q[256], sixteen int8 s, float16 d. As q4_k.
BlockCodec q6_k_codec();

// Encoders of base/quantized.h. Each element has the code of the nearest number, and of two that
// are equally near the lower one.
//
// `blocks` blocks of nf4: writes the codes, and each block's largest magnitude in `scales`; it is
// not finite if an element is not, and the codes are then not to be used.
void encode_nf4(const float* values, std::byte* codes, float* scales, std::int64_t blocks);
// Writes the part of a weight of n elements that follows its codes: the encoded scales. `scales`
// has one element for each block.
void encode_nf4_scales(const float* scales, std::int64_t n, std::byte* out);
// A row of int8, halves rounded to even; returns its scale, which is not finite if an element is
// not.
float encode_int8_row(const float* values, std::byte* codes, std::int64_t columns);

}  // namespace tessera::kernels::cpu
