// Reads at ids.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/indexing/ids.h"

namespace tessera::kernels::cuda {
namespace {

// out[o,l,i] = x[o, id, i]; T is a word of an element's size. Bytes: read the ids and the elements,
// write the elements.
template <class T>
__global__ void gather_kernel(DeviceIds at, const T* x, T* out) {
  const std::int64_t n = at.outer * at.length * at.inner;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const Quotient row = divide(i, at.inner);
    const Quotient line = divide(row.quotient, at.length);
    const std::int64_t id = at.at(i, line.remainder);
    if (id >= 0) out[i] = x[(line.quotient * at.entries + id) * at.inner + row.remainder];
  }
}

}  // namespace

void gather(const Gather& a, Queue queue) {
  Context& context = context_of(queue);
  const DeviceIds at = device_ids(a.at, "gather", context);
  const std::int64_t n = at.outer * at.length * at.inner;
  const auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto size = static_cast<std::int64_t>(sizeof(T));
    launch(context,
           {"gather",
            {at.outer, at.entries, at.length, at.inner},
            {reads(at.ids, a.at.count()), reads(a.x, at.outer * at.entries * at.inner * size),
             writes(a.out, n * size)}},
           {blocks_for(n, map_threads), map_threads}, gather_kernel<T>, at,
           static_cast<const T*>(a.x), static_cast<T*>(a.out));
  };
  switch (size_of(a.dtype)) {
    case 1:
      return run(TypeTag<std::uint8_t>{});
    case 2:
      return run(TypeTag<std::uint16_t>{});
    case 4:
      return run(TypeTag<std::uint32_t>{});
    default:
      return run(TypeTag<std::uint64_t>{});
  }
}

}  // namespace tessera::kernels::cuda
