// Tensors to and from other libraries without a copy, by DLPack's C structures. They have the
// layout of DLManagedTensor of dlpack.h (versions before 1.0), which torch, NumPy, JAX and CuPy
// read and write: cast a pointer to exchange it.
#pragma once

#include <cstdint>

#include "engine/tensor.h"

namespace tessera::dlpack {

struct Place {
  std::int32_t type;  // 1: CPU, 2: CUDA
  std::int32_t index;
};

struct Type {
  std::uint8_t code;  // 0: int, 1: unsigned, 2: float, 4: bfloat, 6: bool
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Array {
  void* data;
  Place place;
  std::int32_t dimensions;
  Type type;
  std::int64_t* shape;
  std::int64_t* strides;  // elements; null: contiguous
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Array array;
  void* owner;
  void (*deleter)(ManagedTensor*);
};

// A description of x that shares and keeps its memory until the receiver calls `deleter`. The host
// waits for the device's work on x first. The receiver may write the values if nothing here needs
// the old ones. Throws std::logic_error for `meta`, and for a parameter of a sharded module, whose
// memory comes and goes: export a clone() of it.
ManagedTensor* export_tensor(const Tensor& x);

// A tensor over the array's memory, which calls `deleter` when the last handle is dropped. The
// array must be contiguous, of a dtype that Tessera has, on a CPU or a GPU; work of its producer on
// a GPU has ended. Otherwise throws std::logic_error, and the caller keeps the array.
Tensor import_tensor(ManagedTensor* tensor);

}  // namespace tessera::dlpack
