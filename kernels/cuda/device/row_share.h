// A thread's share of a normalised row. Its first groups stay in registers between the passes over
// the row; the further groups of a wider row are read again, from the caches.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/row.h"

namespace tessera::kernels::cuda {

// The most groups per thread that for_threads_of_row gives for a row of up to 2048 groups of 16
// bytes.
inline constexpr int kept_groups = 4;

// Calls body(slot, first) for the thread's groups of a row of n: `first` is a group's first
// element, `slot` its place in an array of kept_groups, or kept_groups for a further group.
template <int threads, class T, class Body>
__device__ __forceinline__ void for_groups(std::int64_t n, Body&& body) {
  constexpr std::int64_t width = Vector<T>::size;
#pragma unroll
  for (int slot = 0; slot < kept_groups; ++slot) {
    const std::int64_t first = (slot * threads + static_cast<int>(threadIdx.x)) * width;
    if (first < n) body(slot, first);
  }
  for (std::int64_t first = (kept_groups * threads + static_cast<int>(threadIdx.x)) * width;
       first < n; first += threads * width) {
    body(kept_groups, first);
  }
}

// Reads and writes the groups of rows of n elements: as vectors if all rows are aligned and consist
// of whole groups, else element by element, with the same bits.
template <class T>
struct GroupAccess {
  static constexpr int width = Vector<T>::size;
  std::int64_t n;
  bool vectors;

  // Elements past the row's end are 0.
  __device__ __forceinline__ Vector<T> load(const T* row, std::int64_t first) const {
    if (vectors) return load_vector(row + first);
    Vector<T> vector;
#pragma unroll
    for (int k = 0; k < width; ++k) {
      vector.value[k] = first + k < n ? row[first + k] : from_compute<T>(0);
    }
    return vector;
  }
  __device__ __forceinline__ void store(T* row, std::int64_t first, const Vector<T>& vector) const {
    if (vectors) return store_whole(row + first, vector);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      if (first + k < n) row[first + k] = vector.value[k];
    }
  }
};

template <class T, class... Pointers>
GroupAccess<T> group_access(std::int64_t n, Pointers... pointers) {
  return {n, n % Vector<T>::size == 0 && aligned_for_vectors(pointers...)};
}

}  // namespace tessera::kernels::cuda
