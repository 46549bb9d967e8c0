// Conversion in slices of the staging buffer; equal dtypes go straight between memory and file.
#include "checkpoint/transfer.h"

#include <algorithm>

#include "kernels/registry.h"

namespace tessera::checkpoint {

void Staging::store(const std::byte* in, std::int64_t count, DType from, DType to, const Put& put) {
  if (from == to) {
    put(0, in, static_cast<std::size_t>(count) * size_of(to));
    return;
  }
  buffer_.resize(static_cast<std::size_t>(bytes));
  const std::int64_t slice = bytes / static_cast<std::int64_t>(size_of(to));
  for (std::int64_t done = 0; done < count; done += slice) {
    const std::int64_t n = std::min(slice, count - done);
    kernels::cpu::cast({.in = in + static_cast<std::size_t>(done) * size_of(from),
                        .out = buffer_.data(),
                        .n = n,
                        .in_dtype = from,
                        .out_dtype = to});
    put(static_cast<std::uint64_t>(done) * size_of(to), buffer_.data(),
        static_cast<std::size_t>(n) * size_of(to));
  }
}

void Staging::load(std::byte* out, std::int64_t count, DType from, DType to, const Get& get) {
  if (from == to) {
    get(0, out, static_cast<std::size_t>(count) * size_of(to));
    return;
  }
  buffer_.resize(static_cast<std::size_t>(bytes));
  const std::int64_t slice = bytes / static_cast<std::int64_t>(size_of(from));
  for (std::int64_t done = 0; done < count; done += slice) {
    const std::int64_t n = std::min(slice, count - done);
    get(static_cast<std::uint64_t>(done) * size_of(from), buffer_.data(),
        static_cast<std::size_t>(n) * size_of(from));
    kernels::cpu::cast({.in = buffer_.data(),
                        .out = out + static_cast<std::size_t>(done) * size_of(to),
                        .n = n,
                        .in_dtype = from,
                        .out_dtype = to});
  }
}

}  // namespace tessera::checkpoint
