// Copies between strided arrays. Rows that are adjacent in both are copied as bytes; a
// transposition goes through tiles of cache lines, because neither reads nor writes of single
// elements reach the memory's rate.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/strided_copy.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A square of cache lines.
template <class T>
inline constexpr std::int64_t tile_side = 64 / static_cast<std::int64_t>(sizeof(T));

// out[c][r] = in[r][c] for a square of as many elements as a vector of 16 bytes has. Interleaving
// the first half of the rows with the second, as often as the side has bits, transposes it.
template <class T>
HWY_INLINE void TransposeSquare(const T* in, std::int64_t in_stride, T* out,
                                std::int64_t out_stride) {
  constexpr int side = 16 / static_cast<int>(sizeof(T));
  const hn::FixedTag<T, side> d;
  hn::Vec<decltype(d)> rows[side], mixed[side];
  for (int r = 0; r < side; ++r) rows[r] = hn::LoadU(d, in + r * in_stride);
  for (int step = side; step > 1; step /= 2) {
    for (int r = 0; r < side / 2; ++r) {
      mixed[2 * r] = hn::InterleaveLower(d, rows[r], rows[r + side / 2]);
      mixed[2 * r + 1] = hn::InterleaveUpper(d, rows[r], rows[r + side / 2]);
    }
    for (int r = 0; r < side; ++r) rows[r] = mixed[r];
  }
  for (int r = 0; r < side; ++r) hn::StoreU(rows[r], d, out + r * out_stride);
}

// The tile is assembled in a buffer, so that each line of `out` is written at once: `past_caches`
// if the copy is larger than caches and the lines are aligned, which saves reading them first.
template <bool past_caches, class T>
HWY_INLINE void TransposeTile(const T* in, std::int64_t in_stride, T* out,
                              std::int64_t out_stride) {
  constexpr std::int64_t side = tile_side<T>;
  constexpr std::int64_t square = 16 / static_cast<std::int64_t>(sizeof(T));
  alignas(64) T buffer[side * side];
  for (std::int64_t r = 0; r < side; r += square) {
    for (std::int64_t c = 0; c < side; c += square) {
      TransposeSquare(in + r * in_stride + c, in_stride, buffer + c * side + r, side);
    }
  }
  for (std::int64_t r = 0; r < side; ++r) __builtin_prefetch(in + r * in_stride + side);
  const hn::FixedTag<T, square> d;
  for (std::int64_t c = 0; c < side; ++c) {
    for (std::int64_t k = 0; k < side; k += square) {
      const auto part = hn::Load(d, buffer + c * side + k);
      if constexpr (past_caches) {
        hn::Stream(part, d, out + c * out_stride + k);
      } else {
        hn::StoreU(part, d, out + c * out_stride + k);
      }
    }
  }
}

// out[c * out_stride + r] = in[r * in_stride + c] for rows [first, last) and all columns. All tiles
// of some columns are done before the next columns: neighbouring lines of `out` are written soon
// after each other, and few pages are in use.
template <bool past_caches, class T>
void TransposeRows(const T* in, std::int64_t in_stride, T* out, std::int64_t out_stride,
                   std::int64_t first, std::int64_t last, std::int64_t columns) {
  constexpr std::int64_t side = tile_side<T>;
  const std::int64_t whole_rows = first + (last - first) / side * side;
  const std::int64_t whole_columns = columns / side * side;
  for (std::int64_t c = 0; c < whole_columns; c += side) {
    for (std::int64_t r = first; r < whole_rows; r += side) {
      TransposeTile<past_caches>(in + r * in_stride + c, in_stride, out + c * out_stride + r,
                                 out_stride);
    }
  }
  const auto by_elements = [&](std::int64_t r, std::int64_t first_column) {
    for (std::int64_t c = first_column; c < columns; ++c)
      out[c * out_stride + r] = in[r * in_stride + c];
  };
  for (std::int64_t r = first; r < whole_rows; ++r) by_elements(r, whole_columns);
  for (std::int64_t r = whole_rows; r < last; ++r) by_elements(r, 0);
}

template <bool past_caches, class T>
void TransposeAll(const T* in, T* out, const StridedShape<2>& shape, int column) {
  const int inner = shape.dimensions - 1;
  StridedShape<2> outer;  // without the two dimensions of the matrices
  for (int i = 0; i < inner; ++i) {
    if (i == column) continue;
    outer.sizes[outer.dimensions] = shape.sizes[i];
    for (int k = 0; k < 2; ++k) outer.strides[k][outer.dimensions] = shape.strides[k][i];
    ++outer.dimensions;
  }
  constexpr std::int64_t strip = 4 * tile_side<T>;
  const std::int64_t strips = (shape.sizes[inner] + strip - 1) / strip;
  parallel_for(0, outer.elements() * strips, cpu::rows_grain(strip * shape.sizes[column]),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const StridedWalk<2> walk(outer, outer.dimensions, i / strips);
                   const std::int64_t row = i % strips * strip;
                   TransposeRows<past_caches>(in + walk.offset(0), shape.strides[0][inner],
                                              out + walk.offset(1), shape.strides[1][column], row,
                                              std::min(row + strip, shape.sizes[inner]),
                                              shape.sizes[column]);
                 }
                 if (past_caches) hwy::FlushStream();
               });
}

// True if `out` is larger than a core's caches and every tile begins at a cache line of it.
template <class T>
bool PastCaches(const T* out, const StridedShape<2>& shape) {
  constexpr std::int64_t large = 4 << 20;
  constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
  if (shape.elements() * static_cast<std::int64_t>(sizeof(T)) < large) return false;
  std::int64_t odd = 0;
  for (int i = 0; i < shape.dimensions - 1; ++i) odd |= shape.strides[1][i] % line;
  return odd == 0 && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
}

template <class T>
HWY_INLINE void CopyRow(const T* in, std::int64_t in_stride, T* out, std::int64_t out_stride,
                        std::int64_t n) {
  if (out_stride == 1 && in_stride == 1) {
    if (n * static_cast<std::int64_t>(sizeof(T)) >= 64) {
      std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < n; ++i) out[i] = in[i];
    }
  } else if (out_stride == 1 && in_stride == 0) {
    std::fill_n(out, n, *in);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i * out_stride] = in[i * in_stride];
  }
}

// The dimension in which `in` is adjacent, if it is not the inner one of `out`; else -1.
int TransposedColumn(const StridedShape<2>& shape) {
  const int inner = shape.dimensions - 1;
  if (shape.strides[1][inner] != 1 || shape.strides[0][inner] <= 1) return -1;
  for (int i = 0; i < inner; ++i) {
    if (shape.strides[0][i] == 1) return i;
  }
  return -1;
}

template <class T>
void CopyOf(const StridedCopy& copy, const StridedShape<2>& shape) {
  const auto* in = static_cast<const T*>(copy.in);
  auto* out = static_cast<T*>(copy.out);
  if (const int column = TransposedColumn(shape); column >= 0) {
    if (PastCaches(out, shape)) return TransposeAll<true>(in, out, shape, column);
    return TransposeAll<false>(in, out, shape, column);
  }
  const int inner = shape.dimensions - 1;
  const std::int64_t size = shape.sizes[inner];
  if (inner == 0) {  // one row, which the threads divide
    parallel_for(0, size, cpu::parallel_grain, [&](std::int64_t first, std::int64_t last) {
      CopyRow(in + first * shape.strides[0][0], shape.strides[0][0],
              out + first * shape.strides[1][0], shape.strides[1][0], last - first);
    });
    return;
  }
  parallel_for(0, shape.elements_of(inner), cpu::rows_grain(size),
               [&](std::int64_t first, std::int64_t last) {
                 StridedWalk<2> walk(shape, inner, first);
                 for (std::int64_t row = first; row < last; ++row, walk.next()) {
                   CopyRow(in + walk.offset(0), shape.strides[0][inner], out + walk.offset(1),
                           shape.strides[1][inner], size);
                 }
               });
}

void CopyStrided(const StridedCopy& copy) {
  const WidenedCopy wide = widened(copy, 8);
  switch (wide.element) {
    case 1:
      return CopyOf<std::uint8_t>(copy, wide.shape);
    case 2:
      return CopyOf<std::uint16_t>(copy, wide.shape);
    case 4:
      return CopyOf<std::uint32_t>(copy, wide.shape);
    default:
      return CopyOf<std::uint64_t>(copy, wide.shape);
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(CopyStrided);

void cpu::strided_copy(const StridedCopy& a, Queue) {
  if (a.shape.elements() == 0) return;
  HWY_DYNAMIC_DISPATCH(CopyStrided)(a);
}

}  // namespace tessera::kernels
#endif
