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

// The elements of a block of 16 bytes, which the interleaving instructions work in.
template <class T>
inline constexpr int block = 16 / static_cast<int>(sizeof(T));

// Transposes the squares of which each row is a block of these `block<T>` vectors: interleaving the
// first half of the vectors with the second, as often as their number has bits, does it.
template <class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void TransposeBlocks(D d, V (&rows)[block<T>]) {
  V mixed[block<T>];
  for (int step = block<T>; step > 1; step /= 2) {
    for (int r = 0; r < block<T> / 2; ++r) {
      mixed[2 * r] = hn::InterleaveLower(d, rows[r], rows[r + block<T> / 2]);
      mixed[2 * r + 1] = hn::InterleaveUpper(d, rows[r], rows[r + block<T> / 2]);
    }
    for (int r = 0; r < block<T>; ++r) rows[r] = mixed[r];
  }
}

template <bool past_caches, class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void StoreLine(V line, D d, T* out) {
  if constexpr (past_caches) {
    hn::Stream(line, d, out);
  } else {
    hn::StoreU(line, d, out);
  }
}

#if HWY_MAX_BYTES == 64 && !HWY_HAVE_SCALABLE

// out[c][r] = in[r][c] for a square of cache lines, which are vectors here. After the transposition
// of the blocks, the vectors k of the four groups of rows have the columns k, block + k, .. as
// their blocks.
template <bool past_caches, class T>
HWY_INLINE void TransposeTile(const T* in, std::int64_t in_stride, T* out,
                              std::int64_t out_stride) {
  const hn::FixedTag<T, tile_side<T>> d;
  using V = hn::Vec<decltype(d)>;
  V rows[4][block<T>];
  for (int group = 0; group < 4; ++group) {
    for (int r = 0; r < block<T>; ++r) {
      rows[group][r] = hn::LoadU(d, in + (group * block<T> + r) * in_stride);
    }
    TransposeBlocks(d, rows[group]);
  }
  for (int k = 0; k < block<T>; ++k) {
    const V low02 = hn::ConcatLowerLower(d, rows[2][k], rows[0][k]);
    const V low13 = hn::ConcatLowerLower(d, rows[3][k], rows[1][k]);
    const V high02 = hn::ConcatUpperUpper(d, rows[2][k], rows[0][k]);
    const V high13 = hn::ConcatUpperUpper(d, rows[3][k], rows[1][k]);
    const V columns[4] = {hn::OddEvenBlocks(hn::SwapAdjacentBlocks(low13), low02),
                          hn::OddEvenBlocks(low13, hn::SwapAdjacentBlocks(low02)),
                          hn::OddEvenBlocks(hn::SwapAdjacentBlocks(high13), high02),
                          hn::OddEvenBlocks(high13, hn::SwapAdjacentBlocks(high02))};
    for (int b = 0; b < 4; ++b) {
      StoreLine<past_caches>(columns[b], d, out + (b * block<T> + k) * out_stride);
    }
  }
}

#else

// The same through a buffer, so that each line of `out` is written at once: `past_caches` if the
// copy is larger than caches and the lines are aligned, which saves reading them first.
template <bool past_caches, class T>
HWY_INLINE void TransposeTile(const T* in, std::int64_t in_stride, T* out,
                              std::int64_t out_stride) {
  constexpr std::int64_t side = tile_side<T>;
  alignas(64) T buffer[side * side];
  const hn::FixedTag<T, block<T>> part;
  for (std::int64_t r = 0; r < side; r += block<T>) {
    for (std::int64_t c = 0; c < side; c += block<T>) {
      hn::Vec<decltype(part)> rows[block<T>];
      for (int i = 0; i < block<T>; ++i) {
        rows[i] = hn::LoadU(part, in + (r + i) * in_stride + c);
      }
      TransposeBlocks(part, rows);
      for (int i = 0; i < block<T>; ++i) hn::StoreU(rows[i], part, buffer + (c + i) * side + r);
    }
  }
  for (std::int64_t r = 0; r < side; ++r) __builtin_prefetch(in + r * in_stride + side);
  const hn::CappedTag<T, static_cast<std::size_t>(side)> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t c = 0; c < side; ++c) {
    for (std::int64_t k = 0; k < side; k += lanes) {
      StoreLine<past_caches>(hn::Load(d, buffer + c * side + k), d, out + c * out_stride + k);
    }
  }
}

#endif

// out[c * out_stride + r] = in[r * in_stride + c] for rows [first, last) and all columns. All tiles
// of some columns are done before the next columns: neighbouring lines of `out` are written soon
// after each other, and few pages are in use.
template <bool past_caches, class T>
void TransposeRows(const T* in, std::int64_t in_stride, T* out, std::int64_t out_stride,
                   std::int64_t first, std::int64_t last, std::int64_t columns) {
  constexpr std::int64_t side = tile_side<T>;
  // Lines of `out` that are written past the caches are whole.
  const auto place = reinterpret_cast<std::uintptr_t>(out + first) / sizeof(T) % side;
  const std::int64_t before = past_caches ? (side - static_cast<std::int64_t>(place)) % side : 0;
  const std::int64_t begin = std::min(first + before, last);
  const std::int64_t whole_rows = begin + (last - begin) / side * side;
  const std::int64_t whole_columns = columns / side * side;
  for (std::int64_t c = 0; c < whole_columns; c += side) {
    for (std::int64_t r = begin; r < whole_rows; r += side) {
      TransposeTile<past_caches>(in + r * in_stride + c, in_stride, out + c * out_stride + r,
                                 out_stride);
    }
  }
  // By columns, so that elements of one line of `out` are written together.
  const auto by_elements = [&](std::int64_t row, std::int64_t end, std::int64_t first_column) {
    for (std::int64_t c = first_column; c < columns; ++c) {
      for (std::int64_t r = row; r < end; ++r) out[c * out_stride + r] = in[r * in_stride + c];
    }
  };
  by_elements(first, begin, 0);
  by_elements(begin, whole_rows, whole_columns);
  by_elements(whole_rows, last, 0);
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
  // Strips begin at cache lines of `out`, but for the first, which is shorter.
  constexpr std::int64_t strip = 4 * tile_side<T>;
  const std::int64_t before =
      past_caches
          ? static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % 64 / sizeof(T))
          : 0;
  const std::int64_t strips = (before + shape.sizes[inner] + strip - 1) / strip;
  parallel_for(0, outer.elements() * strips, cpu::rows_grain(strip * shape.sizes[column]),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const StridedWalk<2> walk(outer, outer.dimensions, i / strips);
                   const std::int64_t row = i % strips * strip - before;
                   TransposeRows<past_caches>(
                       in + walk.offset(0), shape.strides[0][inner], out + walk.offset(1),
                       shape.strides[1][column], std::max<std::int64_t>(row, 0),
                       std::min(row + strip, shape.sizes[inner]), shape.sizes[column]);
                 }
                 if (past_caches) hwy::FlushStream();
               });
}

// True if `out` is larger than a core's caches and its rows begin at the same place in a cache
// line.
template <class T>
bool PastCaches(const StridedShape<2>& shape) {
  constexpr std::int64_t large = 4 << 20;
  constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
  if (shape.elements() * static_cast<std::int64_t>(sizeof(T)) < large) return false;
  std::int64_t odd = 0;
  for (int i = 0; i < shape.dimensions - 1; ++i) odd |= shape.strides[1][i] % line;
  return odd == 0;
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
    if (PastCaches<T>(shape)) return TransposeAll<true>(in, out, shape, column);
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
