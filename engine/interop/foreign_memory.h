// Tensors over memory that another library owns.
#pragma once

#include <functional>

#include "engine/tensor.h"

namespace tessera {

// A contiguous tensor over `data`, without a copy. The memory must hold the shape's elements and be
// aligned for the dtype; on a GPU it is the device's, and earlier work on it has ended. `release`
// is called once, by whichever thread drops the last handle to the tensor or to a view of it, after
// that thread's work on a GPU has ended; it must not throw. Empty: the caller keeps the memory for
// so long. No pool counts the memory. A parameter must own its memory: make it of a clone(). Throws
// std::logic_error for null, or an address that is not aligned.
Tensor from_blob(void* data, const Shape& shape, DType dtype, Device device = Device::cpu(),
                 std::function<void()> release = {});

}  // namespace tessera
