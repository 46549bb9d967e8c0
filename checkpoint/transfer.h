// Moving elements between memory and files, converting their dtype through a bounded staging
// buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/base/dtype.h"

namespace tessera::checkpoint {

// Whether elements stored as one dtype may be loaded as another: floating ones in any combination,
// else equal ones.
constexpr bool can_convert(DType from, DType to) {
  return from == to || (is_floating(from) && is_floating(to));
}

class Staging {
 public:
  static constexpr std::int64_t bytes = std::int64_t{4} << 20;

  // Calls put(offset, data, bytes) with the elements in `to`; offsets rise from 0 without holes.
  using Put = std::function<void(std::uint64_t offset, const void* data, std::size_t bytes)>;
  void store(const std::byte* in, std::int64_t count, DType from, DType to, const Put& put);

  // Calls get(offset, data, bytes) for the elements in `from` and leaves them at `out` in `to`.
  using Get = std::function<void(std::uint64_t offset, void* data, std::size_t bytes)>;
  void load(std::byte* out, std::int64_t count, DType from, DType to, const Get& get);

 private:
  std::vector<std::byte> buffer_;  // allocated when something is converted
};

}  // namespace tessera::checkpoint
