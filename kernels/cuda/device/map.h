// Distributes arrays among the threads of element-wise kernels.
//
// An array is split into groups of `width` neighbouring elements, one group per thread. If the
// arrays' addresses allow it, a group is loaded and stored as vectors of up to 16 bytes. The split
// is shifted (`skew`), so that arrays which all begin at the same offset from a vector boundary,
// like segments of flat parameters, still use vectors. First and last groups that extend past the
// array, and arrays whose addresses do not match, are processed element by element. In both cases a
// group is loaded into registers, computed by the same instructions and written back, so the
// beginning and end of an array cannot change an element's bits.
//
// A kernel looks like this:
//   template <class T>
//   __global__ void negate_kernel(Layout layout, const T* x, T* out) {
//     constexpr int width = width_for<T>;
//     for_places<width>(layout, [&](const Place<width>& place) {
//       Compute<T> values[width];
//       place.load(x, values);
//       for (Compute<T>& value : values) value = -value;
//       place.store(out, values);
//     });
//   }
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {

// Threads of a block of an element-wise kernel.
inline constexpr int map_threads = 256;

// Elements of a group such that the narrowest of the types fills 16 bytes; at most 8, so that a
// thread's values of wider types need few registers.
template <class... T>
inline constexpr int width_for = std::min(8, 16 / static_cast<int>(std::min({sizeof(T)...})));

// a / b and a % b of non-negative numbers. Most fit 32 bits, where a division takes a fifth of the
// instructions.
struct Quotient {
  std::int64_t quotient;
  std::int64_t remainder;
};
__device__ __forceinline__ Quotient divide(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) {
    const auto quotient = static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
    return {quotient, static_cast<std::uint32_t>(a) - quotient * static_cast<std::uint32_t>(b)};
  }
  const std::int64_t quotient = a / b;
  return {quotient, a - quotient * b};
}

// T unchanged or widened to U; U unchanged or rounded to T. double and the 16-bit types convert
// through float.
template <class U, class T>
__device__ __forceinline__ U widen(T value) {
  if constexpr (std::is_same_v<T, U>) {
    return value;
  } else {
    return static_cast<U>(to_compute(value));
  }
}
template <class T, class U>
__device__ __forceinline__ T narrow(U value) {
  if constexpr (std::is_same_v<T, U>) {
    return value;
  } else {
    return from_compute<T>(static_cast<Compute<T>>(value));
  }
}

// Elements of one access: `width` elements of T, or 16 bytes of them.
template <class T, int width>
inline constexpr int chunk_size = std::min(width, 16 / static_cast<int>(sizeof(T)));
template <class T, int size>
struct Chunk {
  T value[size];
};

// Loads `width` neighbouring elements by vectors; the address must be aligned for a chunk.
template <int width, class T, class U>
__device__ __forceinline__ void load_group(const T* from, U (&to)[width]) {
  constexpr int size = chunk_size<T, width>;
#pragma unroll
  for (int begin = 0; begin < width; begin += size) {
    const auto word = *reinterpret_cast<const Word<size * sizeof(T)>*>(from + begin);
    const auto chunk = std::bit_cast<Chunk<T, size>>(word);
#pragma unroll
    for (int k = 0; k < size; ++k) to[begin + k] = widen<U>(chunk.value[k]);
  }
}
template <int width, class T, class U>
__device__ __forceinline__ void store_group(T* to, const U (&from)[width]) {
  constexpr int size = chunk_size<T, width>;
#pragma unroll
  for (int begin = 0; begin < width; begin += size) {
    Chunk<T, size> chunk;
#pragma unroll
    for (int k = 0; k < size; ++k) chunk.value[k] = narrow<T>(from[begin + k]);
    store_whole(to + begin, chunk);
  }
}

// The elements of one thread: index(0) ... index(width - 1), without those outside [0, n). Loads
// give zeroes for these; stores skip them.
template <int width>
struct Place {
  std::int64_t n;
  std::int64_t first;
  int stride;
  bool whole;  // all elements exist, are adjacent and are aligned for vectors

  __device__ __forceinline__ std::int64_t index(int k) const {
    return first + static_cast<std::int64_t>(k) * stride;
  }
  __device__ __forceinline__ bool holds(std::int64_t i) const { return i >= 0 && i < n; }

  // U is T itself, or the compute type.
  template <class T, class U>
  __device__ __forceinline__ void load(const T* from, U (&to)[width]) const {
    if (whole) return load_group<width>(from + first, to);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      to[k] = holds(index(k)) ? widen<U>(from[index(k)]) : U{};
    }
  }
  template <class T, class U>
  __device__ __forceinline__ void store(T* to, const U (&from)[width]) const {
    if (whole) return store_group<width>(to + first, from);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      if (holds(index(k))) to[index(k)] = narrow<T>(from[k]);
    }
  }

  // Elements of rows: element i of the place's array is element offset(i) of `from` or `to`. If the
  // place is whole, the first one's offset begins a run of `width` aligned elements.
  template <class T, class U, class Offset>
  __device__ __forceinline__ void gather(const T* from, Offset&& offset, U (&to)[width]) const {
    if (whole) return load_group<width>(from + offset(first), to);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      to[k] = holds(index(k)) ? widen<U>(from[offset(index(k))]) : U{};
    }
  }
  template <class T, class U, class Offset>
  __device__ __forceinline__ void scatter(T* to, Offset&& offset, const U (&from)[width]) const {
    if (whole) return store_group<width>(to + offset(first), from);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      if (holds(index(k))) to[offset(index(k))] = narrow<T>(from[k]);
    }
  }

  // to[k] = row[index(k) % inner]: a row of `inner` elements, repeated.
  template <class T, class U>
  __device__ __forceinline__ void load_repeated(const T* row, std::int64_t inner,
                                                U (&to)[width]) const {
    if (!whole) {
      return gather(
          row, [&](std::int64_t i) { return divide(i, inner).remainder; }, to);
    }
    std::int64_t column = divide(first, inner).remainder;
    if (column + width <= inner &&
        reinterpret_cast<std::uintptr_t>(row + column) % (chunk_size<T, width> * sizeof(T)) == 0) {
      return load_group<width>(row + column, to);
    }
#pragma unroll
    for (int k = 0; k < width; ++k) {
      to[k] = widen<U>(row[column]);
      if (++column == inner) column = 0;
    }
  }
};

// The layout of an array's groups, for n elements.
struct Layout {
  std::int64_t n;
  int skew = 0;          // group 0 begins this many elements before the array
  bool vectors = false;  // whole groups are aligned in all arrays
  // Without vectors, neighbouring threads of a block process neighbouring elements, so their
  // accesses are adjacent. Kernels that need a group's elements together set `grouped`.
  bool grouped = false;
};

// An array of a kernel; null if absent.
struct MappedArray {
  const void* memory;
  std::size_t element_bytes;
};

// True if groups that begin `skew` elements before the array are aligned for their vectors.
template <int width>
bool groups_are_aligned(const MappedArray& array, int skew) {
  if (array.memory == nullptr) return true;
  const std::size_t vector = std::min<std::size_t>(16, width * array.element_bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(array.memory);
  return (address - static_cast<std::size_t>(skew) * array.element_bytes) % vector == 0;
}

// A layout with vectors if one suits all arrays.
template <int width>
Layout layout_of(std::int64_t n, std::initializer_list<MappedArray> arrays) {
  for (int skew = 0; skew < width; ++skew) {
    if (std::all_of(arrays.begin(), arrays.end(), [&](const MappedArray& array) {
          return groups_are_aligned<width>(array, skew);
        })) {
      return {n, skew, true};
    }
  }
  return {n};
}

// The grid for a kernel over the layout.
template <int width>
LaunchConfiguration configuration_of(const Layout& layout) {
  const std::int64_t covered = layout.n > 0 ? layout.n + layout.skew : 0;
  return {blocks_for(covered, map_threads * width), map_threads};
}

// Calls body(place) for the thread's share of the array.
template <int width, class Body>
__device__ __forceinline__ void for_places(const Layout& layout, Body&& body) {
  constexpr std::int64_t tile = map_threads * width;
  const bool grouped = layout.vectors || layout.grouped;
  const auto thread = static_cast<std::int64_t>(threadIdx.x);
  std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * tile - layout.skew;
  for (; start < layout.n; start += static_cast<std::int64_t>(gridDim.x) * tile) {
    const std::int64_t first = start + (grouped ? thread * width : thread);
    const bool whole = layout.vectors && first >= 0 && first + width <= layout.n;
    body(Place<width>{layout.n, first, grouped ? 1 : map_threads, whole});
  }
}

}  // namespace tessera::kernels::cuda
