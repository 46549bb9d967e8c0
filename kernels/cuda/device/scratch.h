// Splits the scratch memory of an op into arrays.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/context.h"

namespace tessera::kernels::cuda {

// First add() every array, then take() the memory, then ask for the arrays.
class ScratchArrays {
 public:
  template <class T>
  struct Array {
    std::size_t offset;
  };

  template <class T>
  Array<T> add(std::int64_t count) {
    constexpr std::size_t alignment = 256;
    const std::size_t offset = bytes_;
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    bytes_ += (bytes + alignment - 1) / alignment * alignment;
    return {offset};
  }
  void take(Context& context) { memory_ = static_cast<std::byte*>(context.scratch(bytes_)); }
  template <class T>
  T* operator[](Array<T> array) const {
    return reinterpret_cast<T*>(memory_ + array.offset);
  }

 private:
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace tessera::kernels::cuda
