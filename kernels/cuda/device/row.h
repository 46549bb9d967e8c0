// Distributes a row among the threads of a block.
//
// Sums split the row into groups of 16 bytes: group g belongs to thread g % threads, wherever the
// row is in memory, so neither its alignment nor its neighbours can change a bit. Element-wise
// passes, whose order does not matter, begin with the elements before the first 16-byte boundary.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {

// Loads sixteen bytes from an address that is aligned only for its elements, through the two
// aligned words of 16 bytes that contain them.
template <class T>
__device__ __forceinline__ Vector<T> load_across_words(const T* from) {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  const auto offset = static_cast<unsigned>(address % 16);
  const auto* words = reinterpret_cast<const Vector<std::uint64_t>*>(address - offset);
  const Vector<std::uint64_t> first = words[0];
  const Vector<std::uint64_t> second = words[1];
  const bool lower = offset < 8;
  const std::uint64_t a = lower ? first.value[0] : first.value[1];
  const std::uint64_t b = lower ? first.value[1] : second.value[0];
  const std::uint64_t c = lower ? second.value[0] : second.value[1];
  const unsigned shift = offset % 8 * 8;
  // Two shifts to the left, because a shift by 64 is undefined.
  const std::uint64_t bits[2] = {(a >> shift) | (b << 1 << (63 - shift)),
                                 (b >> shift) | (c << 1 << (63 - shift))};
  Vector<T> result;
  memcpy(&result, bits, sizeof(result));
  return result;
}

// Elements [first, first + Vector<T>::size) of a row of n; `filler` for those past its end.
template <class T>
__device__ __forceinline__ Vector<T> load_of_row(const T* row, std::int64_t first, std::int64_t n,
                                                 Compute<T> filler) {
  constexpr int width = Vector<T>::size;
  const T* from = row + first;
  const auto offset = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(from) % 16) /
                      static_cast<std::int64_t>(sizeof(T));
  if (offset == 0 && first + width <= n) return load_vector(from);
  if (offset != 0 && first >= offset && first - offset + 2 * width <= n) {
    return load_across_words(from);
  }
  Vector<T> result;
#pragma unroll
  for (int k = 0; k < width; ++k) {
    result.value[k] = first + k < n ? row[first + k] : from_compute<T>(filler);
  }
  return result;
}

template <int size>
struct ElementCount {
  static constexpr int value = size;
};

// Calls body(first, ElementCount<size>) for all elements of a row of n, `size` at a time: a vector,
// aligned in every one of the rows, or a single element.
template <int threads, class T, class Body, class... Rows>
__device__ __forceinline__ void for_elements(std::int64_t n, Body&& body, const T* row,
                                             const Rows*... rows) {
  constexpr std::int64_t width = Vector<T>::size;
  const auto offset = reinterpret_cast<std::uintptr_t>(row) % 16;
  const bool together = ((reinterpret_cast<std::uintptr_t>(rows) % 16 == offset) && ...);
  const auto before = static_cast<std::int64_t>((16 - offset) % 16 / sizeof(T));
  const std::int64_t begin = together && before < n ? before : n;
  const std::int64_t end = begin + (n - begin) / width * width;
  for (std::int64_t i = threadIdx.x; i < begin; i += threads) body(i, ElementCount<1>{});
  for (std::int64_t i = begin + threadIdx.x * width; i < end; i += threads * width) {
    body(i, ElementCount<width>{});
  }
  for (std::int64_t i = end + threadIdx.x; i < n; i += threads) body(i, ElementCount<1>{});
}

// One element, or an aligned vector of them.
template <int size, class T>
__device__ __forceinline__ void load_elements(const T* from, Compute<T> (&to)[size]) {
  if constexpr (size == 1) {
    to[0] = to_compute(*from);
  } else {
    const Vector<T> vector = load_vector(from);
#pragma unroll
    for (int k = 0; k < size; ++k) to[k] = to_compute(vector.value[k]);
  }
}
template <int size, class T>
__device__ __forceinline__ void store_elements(T* to, const Compute<T> (&from)[size]) {
  if constexpr (size == 1) {
    *to = from_compute<T>(from[0]);
  } else {
    Vector<T> vector;
#pragma unroll
    for (int k = 0; k < size; ++k) vector.value[k] = from_compute<T>(from[k]);
    store_whole(to, vector);
  }
}

// The second launch bound for kernels over rows: the number of blocks per multiprocessor that
// leaves each thread `registers` registers (twice as many for arithmetic in fp64). Without it, the
// compiler uses more threads and spills. No GPU has fewer than 16 blocks per multiprocessor.
template <int threads, int registers, class C = float>
inline constexpr int resident_blocks =
    std::min(16, (64 << 10) / (registers * static_cast<int>(sizeof(C) / sizeof(float))) / threads);

// Rows that a block handles at once, one a thread in y: a multiprocessor holds at most 16 to 32
// blocks, so blocks of one warp would leave it half empty.
template <int threads>
inline constexpr int rows_of_block = threads == warp_size ? 4 : 1;

template <int count>
struct ThreadCount {
  static constexpr int value = count;
};

// Calls body(ThreadCount<...>) with the number of threads for a row of n elements: a warp up to
// four groups per lane, then 128 and 512. It depends only on n, because it determines the order of
// sums.
template <class T, class Body>
void for_threads_of_row(std::int64_t n, Body&& body) {
  const std::int64_t groups = (n + Vector<T>::size - 1) / Vector<T>::size;
  if (groups <= 4 * 32) return body(ThreadCount<32>{});
  if (groups <= 4 * 128) return body(ThreadCount<128>{});
  return body(ThreadCount<512>{});
}

}  // namespace tessera::kernels::cuda
