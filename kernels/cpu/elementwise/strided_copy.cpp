// Copies between strided arrays. Rows that are adjacent in both are copied as bytes; a
// transposition goes through tiles of cache lines, because neither reads nor writes of single
// elements reach the memory's rate, and one that is larger than the caches through panels of 512
// bytes by 512. Long copies of rows are read in the order of the memory and written past the
// caches.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/strided_copy.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "base/parallel.h"
#include "hwy/aligned_allocator.h"
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

#if HWY_MAX_BYTES == 64 && !HWY_HAVE_SCALABLE

// out[c][r] = in[r][c] for a square of cache lines, which are vectors here. After the transposition
// of the blocks, the vectors k of the four groups of rows have the columns k, block + k, .. as
// their blocks.
template <class T>
HWY_INLINE void TransposeSquare(const T* in, std::int64_t in_stride, T* out,
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
    for (int b = 0; b < 4; ++b) hn::StoreU(columns[b], d, out + (b * block<T> + k) * out_stride);
  }
}

template <class T>
HWY_INLINE void TransposeTile(const T* in, std::int64_t in_stride, T* out,
                              std::int64_t out_stride) {
  TransposeSquare(in, in_stride, out, out_stride);
}

#else

template <class T>
HWY_INLINE void TransposeSquare(const T* in, std::int64_t in_stride, T* out,
                                std::int64_t out_stride) {
  constexpr std::int64_t side = tile_side<T>;
  const hn::FixedTag<T, block<T>> part;
#if HWY_MAX_BYTES == 32 && !HWY_HAVE_SCALABLE
  // Two squares below each other are the halves of the vectors.
  const hn::FixedTag<T, 2 * block<T>> d;
  const auto load = [&](const T* from) HWY_ATTR {
    return hn::Combine(d, hn::LoadU(part, from + block<T> * in_stride), hn::LoadU(part, from));
  };
#else
  const auto d = part;
  const auto load = [&](const T* from) HWY_ATTR { return hn::LoadU(d, from); };
#endif
  for (std::int64_t r = 0; r < side; r += static_cast<std::int64_t>(hn::MaxLanes(d))) {
    for (std::int64_t c = 0; c < side; c += block<T>) {
      hn::Vec<decltype(d)> rows[block<T>];
      for (int i = 0; i < block<T>; ++i) rows[i] = load(in + (r + i) * in_stride + c);
      TransposeBlocks(d, rows);
      for (int i = 0; i < block<T>; ++i) hn::StoreU(rows[i], d, out + (c + i) * out_stride + r);
    }
  }
}

// The same through a buffer, so that each line of `out` is written at once.
template <class T>
HWY_INLINE void TransposeTile(const T* in, std::int64_t in_stride, T* out,
                              std::int64_t out_stride) {
  constexpr std::int64_t side = tile_side<T>;
  alignas(64) T buffer[side * side];
  TransposeSquare(in, in_stride, buffer, side);
  for (std::int64_t r = 0; r < side; ++r) __builtin_prefetch(in + r * in_stride + side);
  for (std::int64_t c = 0; c < side; ++c) std::memcpy(out + c * out_stride, buffer + c * side, 64);
}

#endif

// A part of a transposition that is larger than the caches. Its reads and its writes are as long as
// the memory needs for its full rate, 512 bytes: rows of the part are copied into `rows`, which
// fits the second cache, and rows of the result leave `columns`, which fits the first. A gap of a
// cache line between rows keeps them in different sets.
template <class T>
class Panel {
 public:
  static constexpr std::int64_t side = 512 / static_cast<std::int64_t>(sizeof(T));
  static constexpr std::int64_t width = std::min<std::int64_t>(side, 256);

  Panel()
      : rows_(hwy::AllocateAligned<T>(static_cast<std::size_t>(side * row_stride))),
        columns_(hwy::AllocateAligned<T>(static_cast<std::size_t>(tile_side<T> * column_stride))) {
    if (!rows_ || !columns_) throw std::bad_alloc();
  }

  // out[c * out_stride + r] = in[r * in_stride + c] for whole tiles: `height` rows, up to `side`,
  // and `count` columns, up to `width`. `past_caches` if rows of `out` begin at cache lines: lines
  // that are written whole need not be read first.
  void transpose(const T* in, std::int64_t in_stride, T* out, std::int64_t out_stride,
                 std::int64_t height, std::int64_t count, bool past_caches) {
    constexpr std::int64_t tile = tile_side<T>;
    const hn::CappedTag<T, static_cast<std::size_t>(tile)> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    T* rows = rows_.get();
    T* columns = columns_.get();
    for (std::int64_t r = 0; r < height; ++r) {
      const T* from = in + r * in_stride;
      T* to = rows + r * row_stride;
      for (std::int64_t c = 0; c < count; c += lanes) hn::Store(hn::LoadU(d, from + c), d, to + c);
    }
    for (std::int64_t first = 0; first < count; first += tile) {
      for (std::int64_t r = 0; r < height; r += tile) {
        TransposeSquare(rows + r * row_stride + first, row_stride, columns + r, column_stride);
      }
      for (std::int64_t c = 0; c < tile; ++c) {
        T* line = out + (first + c) * out_stride;
        const T* from = columns + c * column_stride;
        if (past_caches) {
          for (std::int64_t r = 0; r < height; r += lanes) {
            hn::Stream(hn::Load(d, from + r), d, line + r);
          }
        } else {
          for (std::int64_t r = 0; r < height; r += lanes) {
            hn::StoreU(hn::Load(d, from + r), d, line + r);
          }
        }
      }
    }
  }

 private:
  static constexpr std::int64_t row_stride = width + tile_side<T>;
  static constexpr std::int64_t column_stride = side + tile_side<T>;

  hwy::AlignedFreeUniquePtr<T[]> rows_, columns_;
};

// out[c * out_stride + r] = in[r * in_stride + c] for rows [first, last) and all columns. All tiles
// of some columns are done before the next columns: neighbouring lines of `out` are written soon
// after each other, and few pages are in use. A `panel` is for what is larger than the caches.
template <class T>
void TransposeRows(const T* in, std::int64_t in_stride, T* out, std::int64_t out_stride,
                   std::int64_t first, std::int64_t last, std::int64_t columns, Panel<T>* panel,
                   bool past_caches) {
  constexpr std::int64_t side = tile_side<T>;
  // Lines of `out` that are written past the caches are whole.
  const auto place = reinterpret_cast<std::uintptr_t>(out + first) / sizeof(T) % side;
  const std::int64_t before = past_caches ? (side - static_cast<std::int64_t>(place)) % side : 0;
  const std::int64_t begin = std::min(first + before, last);
  const std::int64_t whole_rows = begin + (last - begin) / side * side;
  const std::int64_t whole_columns = columns / side * side;
  if (panel) {
    for (std::int64_t c = 0; c < whole_columns; c += Panel<T>::width) {
      panel->transpose(in + begin * in_stride + c, in_stride, out + c * out_stride + begin,
                       out_stride, whole_rows - begin, std::min(Panel<T>::width, whole_columns - c),
                       past_caches);
    }
  } else {
    for (std::int64_t c = 0; c < whole_columns; c += side) {
      for (std::int64_t r = begin; r < whole_rows; r += side) {
        TransposeTile(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
      }
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

// True if all rows of `out` begin at the same place in a cache line.
template <class T>
bool RowsAreAligned(const StridedShape<2>& shape) {
  std::int64_t odd = 0;
  for (int i = 0; i < shape.dimensions - 1; ++i) odd |= shape.strides[1][i] % tile_side<T>;
  return odd == 0;
}

// True if no cache of a core has so many elements.
template <class T>
bool IsLarge(const StridedShape<2>& shape) {
  constexpr std::int64_t larger_than_caches = 4 << 20;  // bytes
  return shape.elements() * static_cast<std::int64_t>(sizeof(T)) >= larger_than_caches;
}

template <class T>
void TransposeAll(const T* in, T* out, const StridedShape<2>& shape, int column) {
  const bool large = IsLarge<T>(shape);
  const bool past_caches = large && RowsAreAligned<T>(shape);
  const int inner = shape.dimensions - 1;
  StridedShape<2> outer;  // without the two dimensions of the matrices
  for (int i = 0; i < inner; ++i) {
    if (i == column) continue;
    outer.sizes[outer.dimensions] = shape.sizes[i];
    for (int k = 0; k < 2; ++k) outer.strides[k][outer.dimensions] = shape.strides[k][i];
    ++outer.dimensions;
  }
  // Strips begin at cache lines of `out`, but for the first, which is shorter.
  const std::int64_t strip = large ? Panel<T>::side : 4 * tile_side<T>;
  const std::int64_t before =
      past_caches
          ? static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % 64 / sizeof(T))
          : 0;
  const std::int64_t strips = (before + shape.sizes[inner] + strip - 1) / strip;
  parallel_for(0, outer.elements() * strips, cpu::rows_grain(strip * shape.sizes[column]),
               [&](std::int64_t first, std::int64_t last) {
                 std::optional<Panel<T>> panel;
                 if (large) panel.emplace();
                 for (std::int64_t i = first; i < last; ++i) {
                   const StridedWalk<2> walk(outer, outer.dimensions, i / strips);
                   const std::int64_t row = i % strips * strip - before;
                   TransposeRows<T>(in + walk.offset(0), shape.strides[0][inner],
                                    out + walk.offset(1), shape.strides[1][column],
                                    std::max<std::int64_t>(row, 0),
                                    std::min(row + strip, shape.sizes[inner]), shape.sizes[column],
                                    panel ? &*panel : nullptr, past_caches);
                 }
                 if (past_caches) hwy::FlushStream();
               });
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

// A row of whole cache lines, past the caches.
template <class T>
HWY_INLINE void StreamRow(const T* in, T* out, std::int64_t n) {
  const hn::CappedTag<T, static_cast<std::size_t>(tile_side<T>)> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < n; i += lanes) hn::Stream(hn::LoadU(d, in + i), d, out + i);
}

// The same with the rows that are next to each other in `in` one after the other: it is read in
// long pieces, and written as several streams of rows.
StridedShape<2> InOrderOfReading(StridedShape<2> shape) {
  const int inner = shape.dimensions - 1;
  int nearest = inner - 1;
  for (int i = 0; i < inner; ++i) {
    if (shape.sizes[i] > 1 && shape.strides[0][i] < shape.strides[0][nearest]) nearest = i;
  }
  for (int i = nearest; i + 1 < inner; ++i) {
    std::swap(shape.sizes[i], shape.sizes[i + 1]);
    for (auto& strides : shape.strides) std::swap(strides[i], strides[i + 1]);
  }
  return shape;
}

template <class T>
void StreamRows(const T* in, T* out, const StridedShape<2>& shape) {
  const int inner = shape.dimensions - 1;
  const std::int64_t size = shape.sizes[inner];
  parallel_for(0, shape.elements_of(inner), cpu::rows_grain(size),
               [&](std::int64_t first, std::int64_t last) {
                 StridedWalk<2> walk(shape, inner, first);
                 for (std::int64_t row = first; row < last; ++row, walk.next()) {
                   StreamRow(in + walk.offset(0), out + walk.offset(1), size);
                 }
                 hwy::FlushStream();
               });
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
    TransposeAll(in, out, shape, column);
    return;
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
  // Lines of `out` that are written whole need not be read first.
  const bool past_caches = IsLarge<T>(shape) && shape.strides[0][inner] == 1 &&
                           shape.strides[1][inner] == 1 && size % tile_side<T> == 0 &&
                           RowsAreAligned<T>(shape) &&
                           reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  if (past_caches) {
    StreamRows(in, out, InOrderOfReading(shape));
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
