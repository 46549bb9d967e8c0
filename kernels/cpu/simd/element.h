// The address of an element whose type is known only at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels::cpu {

inline const void* element(const void* base, DType dtype, std::int64_t index) {
  return static_cast<const std::byte*>(base) + index * static_cast<std::int64_t>(size_of(dtype));
}
inline void* element(void* base, DType dtype, std::int64_t index) {
  return static_cast<std::byte*>(base) + index * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace tessera::kernels::cpu
