// Converts between numbers in memory and their form on the wire (base/block_float.h).
#pragma once

#include <cstdint>

#include "base/block_float.h"
#include "base/dtype.h"

namespace tessera::kernels {

enum class WireStep : std::uint8_t {
  encode,  // in -> payload and scales
  decode,  // payload and scales -> out
  round,   // in -> out, the result of encode and decode; out may equal in
};

// Blocks begin at the first element; a last partial block is padded with zeros. For fp32, bf16 and
// fp16; each conversion rounds to nearest even.
struct Wire {
  WireStep step;
  WireFormat format;  // not `same`
  const void* in;     // [n] of in_dtype
  void* out;          // [n] of out_dtype
  void* payload;      // wire_payload_bytes(format, n)
  void* scales;       // wire_scale_bytes(format, n)
  std::int64_t n;
  DType in_dtype, out_dtype;
};

}  // namespace tessera::kernels
