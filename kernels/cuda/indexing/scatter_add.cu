// Sums at ids, in the order of the ids.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/indexing/ids.h"

namespace tessera::kernels::cuda {
namespace {

// sums[o, id, i] += x[o,l,i] in ascending l; one thread for each column (o, i). Bytes: read x and
// the ids; read and write the sums.
template <class T, class C>
__global__ void scatter_add_kernel(DeviceIds at, const T* x, C* sums) {
  std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; column < at.outer * at.inner;
       column += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const Quotient place = divide(column, at.inner);
    for (std::int64_t l = 0; l < at.length; ++l) {
      const std::int64_t i = (place.quotient * at.length + l) * at.inner + place.remainder;
      const std::int64_t id = at.at(i, l);
      if (id < 0) continue;
      C& sum = sums[(place.quotient * at.entries + id) * at.inner + place.remainder];
      sum += to_compute(x[i]);
    }
  }
}

}  // namespace

void scatter_add(const ScatterAdd& a, Queue queue) {
  Context& context = context_of(queue);
  const DeviceIds at = device_ids(a.at, "scatter_add", context);
  const std::int64_t columns = at.outer * at.inner, sums = columns * at.entries;
  for_floating(a.dtype, "scatter_add", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const std::int64_t x_bytes = columns * at.length * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t sum_bytes = sums * static_cast<std::int64_t>(sizeof(C));
    constexpr bool direct = std::is_same_v<T, C>;
    auto* to =
        static_cast<C*>(direct ? a.out : context.scratch(static_cast<std::size_t>(sum_bytes)));
    if (!direct) cast({a.out, to, sums, a.dtype, DType::float32}, queue);
    launch(context,
           {"scatter_add",
            {at.outer, at.entries, at.length, at.inner},
            {reads(at.ids, a.at.count()), reads(a.x, x_bytes), reads(to, sum_bytes),
             writes(to, sum_bytes)}},
           {blocks_for(columns, map_threads), map_threads}, scatter_add_kernel<T, C>, at,
           static_cast<const T*>(a.x), to);
    if (!direct) cast({to, a.out, sums, DType::float32, a.dtype}, queue);
  });
}

}  // namespace tessera::kernels::cuda
