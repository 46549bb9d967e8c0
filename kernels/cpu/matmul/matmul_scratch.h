// Memory that a kernel needs while it runs. It grows to the largest request, and its owner, a
// thread, keeps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "base/error.h"

namespace tessera::kernels::cpu {

class ScratchBuffer {
 public:
  // `count` elements aligned to a cache line; earlier contents are lost.
  template <class T>
  T* get(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > bytes_) {
      memory_.reset();  // first, so that the old and the new block never exist together
      bytes_ = 0;
      memory_.reset(
          static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}, std::nothrow)));
      TESSERA_CHECK(memory_ != nullptr, ErrorCode::out_of_memory,
                    "out of memory: {} bytes asked for to pack the operands of a matrix product",
                    bytes);
      bytes_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete (bytes, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace tessera::kernels::cpu
