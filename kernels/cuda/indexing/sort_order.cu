// The order of sorted rows by bitonic sorts of (key, position), which are all different: the sort
// is stable. A short row is sorted in shared memory by one block, a long one in scratch memory with
// one launch for each step.
#include <bit>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/keys/sort_key.h"

namespace tessera::kernels::cuda {
namespace {

struct SortItem {
  std::uint64_t key;
  std::uint64_t position;  // ~0: past the row's end, after all others
};
__device__ __forceinline__ bool in_front(const SortItem& a, const SortItem& b) {
  return a.key < b.key || (a.key == b.key && a.position < b.position);
}

constexpr int sort_threads = 256;
constexpr int short_row = 1024;
struct ShortRow {
  SortItem item[short_row];
};

template <class T>
__device__ __forceinline__ SortItem item_of(const T* row, std::int64_t i, std::int64_t length,
                                            bool descending) {
  if (i >= length) return {~std::uint64_t{0}, ~std::uint64_t{0}};
  const std::uint64_t key = sort_key(to_compute(row[i]));
  const std::uint64_t all = sizeof(Compute<T>) == 4 ? 0xffffffffu : ~std::uint64_t{0};
  return {descending ? all - key : key, static_cast<std::uint64_t>(i)};
}

// Puts the pair of places that belongs to number i of a step into order.
__device__ __forceinline__ void order_pair(SortItem* items, std::int64_t i, std::int64_t size,
                                           std::int64_t distance) {
  const std::int64_t low = i / distance * 2 * distance + i % distance, high = low + distance;
  const bool ascending = (low & size) == 0;
  if (in_front(items[high], items[low]) == ascending) {
    const SortItem kept = items[low];
    items[low] = items[high];
    items[high] = kept;
  }
}

// One block for each row of at most short_row elements; `padded` is a power of two. Bytes: read x,
// write the order.
template <class T>
__global__ void __launch_bounds__(sort_threads)
    sort_short_kernel(const T* x, std::int64_t* order, std::int64_t rows, std::int64_t length,
                      std::int64_t padded, bool descending) {
  auto& shared = shared_memory<ShortRow>();
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (std::int64_t i = thread; i < padded; i += sort_threads) {
      shared.item[i] = item_of(x + row * length, i, length, descending);
    }
    __syncthreads();
    for (std::int64_t size = 2; size <= padded; size *= 2) {
      for (std::int64_t distance = size / 2; distance > 0; distance /= 2) {
        for (std::int64_t i = thread; i < padded / 2; i += sort_threads) {
          order_pair(shared.item, i, size, distance);
        }
        __syncthreads();
      }
    }
    for (std::int64_t i = thread; i < length; i += sort_threads) {
      order[row * length + i] = static_cast<std::int64_t>(shared.item[i].position);
    }
    __syncthreads();
  }
}

// items [rows, padded] from x. Bytes: read x, write the items.
template <class T>
__global__ void sort_load_kernel(const T* x, SortItem* items, std::int64_t rows,
                                 std::int64_t length, std::int64_t padded, bool descending) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < rows * padded; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const Quotient place = divide(i, padded);
    items[i] = item_of(x + place.quotient * length, place.remainder, length, descending);
  }
}
// One step of the sort of all rows. Bytes: read and write the items.
__global__ void sort_step_kernel(SortItem* items, std::int64_t rows, std::int64_t padded,
                                 std::int64_t size, std::int64_t distance) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < rows * padded / 2; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const Quotient place = divide(i, padded / 2);
    order_pair(items + place.quotient * padded, place.remainder, size, distance);
  }
}
// Bytes: read the items, write the order.
__global__ void sort_store_kernel(const SortItem* items, std::int64_t* order, std::int64_t rows,
                                  std::int64_t length, std::int64_t padded) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < rows * length; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const Quotient place = divide(i, length);
    order[i] = static_cast<std::int64_t>(items[place.quotient * padded + place.remainder].position);
  }
}

template <class T>
void sort_order_of(const SortOrder& a, Context& context) {
  const auto* x = static_cast<const T*>(a.x);
  const auto padded =
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(a.length)));
  const std::int64_t n = a.rows * a.length;
  const Access read = reads(x, n * static_cast<std::int64_t>(sizeof(T)));
  const Access write = writes(a.order, n * static_cast<std::int64_t>(sizeof(std::int64_t)));
  if (padded <= short_row) {
    launch(context, {"sort_order", {a.rows, a.length}, {read, write}},
           {blocks_for(a.rows, 1), sort_threads}, sort_short_kernel<T>, x, a.order, a.rows,
           a.length, padded, a.descending);
    return;
  }
  const std::int64_t bytes = a.rows * padded * static_cast<std::int64_t>(sizeof(SortItem));
  auto* items = static_cast<SortItem*>(context.scratch(static_cast<std::size_t>(bytes)));
  const Access read_items = reads(items, bytes), write_items = writes(items, bytes);
  launch(context, {"sort_order load", {a.rows, a.length}, {read, write_items}},
         {blocks_for(a.rows * padded, sort_threads), sort_threads}, sort_load_kernel<T>, x, items,
         a.rows, a.length, padded, a.descending);
  for (std::int64_t size = 2; size <= padded; size *= 2) {
    for (std::int64_t distance = size / 2; distance > 0; distance /= 2) {
      launch(context,
             {"sort_order step", {a.rows, padded, size, distance}, {read_items, write_items}},
             {blocks_for(a.rows * padded / 2, sort_threads), sort_threads}, sort_step_kernel, items,
             a.rows, padded, size, distance);
    }
  }
  launch(context, {"sort_order store", {a.rows, a.length}, {read_items, write}},
         {blocks_for(n, sort_threads), sort_threads}, sort_store_kernel, items, a.order, a.rows,
         a.length, padded);
}

}  // namespace

void sort_order(const SortOrder& a, Queue queue) {
  if (a.length >= std::int64_t{1} << 31)
    misuse_of("sort_order", "rows of 2^31 or more elements", a.length);
  if (a.rows * a.length == 0) return;
  for_floating(a.dtype, "sort_order", [&](auto tag) {
    sort_order_of<typename decltype(tag)::type>(a, context_of(queue));
  });
}

}  // namespace tessera::kernels::cuda
