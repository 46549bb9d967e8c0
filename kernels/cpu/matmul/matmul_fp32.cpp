// Matrix products in single precision, blocked for the caches: panels of a and b are packed, and a
// tile of c stays in registers while it runs over them (Goto & van de Geijn, TOMS 2008).
#include "kernels/cpu/matmul/matmul_fp32.h"

#include <algorithm>

#include "base/parallel.h"
#include "kernels/cpu/matmul/matmul_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul/matmul_fp32.cpp"
#include "kernels/cpu/simd/simd_targets.h"
// After simd_targets.h.
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// A tile of c: rows of a panel of a, and two vectors of columns. With eight lanes its sums, a row
// of b and a factor fill the sixteen registers.
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
// Elements of k in a block: a panel of b (16 KiB with eight lanes) stays in the first cache.
constexpr std::int64_t kDepth = 256;
// Rows of a in a block (96 KiB, in the second cache) and columns of b (2 MiB, in the third).
constexpr std::int64_t kBlockRows = 96;
constexpr std::int64_t kBlockColumns = 2048;
static_assert(kBlockRows % kTileRows == 0);

std::int64_t TileColumns() {
  return kTileVectors * static_cast<std::int64_t>(LaneCount<float>());
}

// Packs panels of [depth, kTileRows], one after the other: `rows` rows of a from `row` on, elements
// [k, k+depth) of each, with zeros below. A transposed a is read along its own rows, all panels at
// once. One panel at a time would fetch each line again for every panel, and from beyond the
// second-level cache if the distance of rows is a power of two.
void PackA(const Matmul& product, std::int64_t row, std::int64_t rows, std::int64_t k,
           std::int64_t depth, float* out) {
  const auto* a = static_cast<const float*>(product.a);
  const std::int64_t panel_elements = kTileRows * depth;
  if (product.transpose_a) {
    const std::int64_t whole = rows / kTileRows * kTileRows;
    for (std::int64_t i = 0; i < depth; ++i) {
      const float* from = a + (k + i) * product.lda + row;
      float* to = out + i * kTileRows;
      for (std::int64_t r = 0; r < whole; r += kTileRows, to += panel_elements) {
        for (std::int64_t j = 0; j < kTileRows; ++j) to[j] = from[r + j] * product.alpha;
      }
      if (whole == rows) continue;
      for (std::int64_t j = 0; j < kTileRows; ++j) {
        to[j] = whole + j < rows ? from[whole + j] * product.alpha : 0.0f;
      }
    }
    return;
  }
  for (std::int64_t panel = 0; panel < rows; panel += kTileRows, out += panel_elements) {
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      const float* from = a + (row + panel + r) * product.lda + k;
      for (std::int64_t i = 0; i < depth; ++i) {
        out[i * kTileRows + r] = panel + r < rows ? from[i] * product.alpha : 0.0f;
      }
    }
  }
}

// Packs [depth, columns of a tile]: columns of b from `column` on, with zeros to the right. A
// transposed b is read one line of each row at a time: if the distance of its rows is a power of
// two, the lines share a set of the first-level cache and need not stay there.
void PackB(const Matmul& product, std::int64_t column, std::int64_t columns, std::int64_t k,
           std::int64_t depth, float* out) {
  const auto* b = static_cast<const float*>(product.b);
  const std::int64_t width = TileColumns();
  if (product.transpose_b) {
    constexpr std::int64_t line = 64 / sizeof(float);
    for (std::int64_t i = 0; i < depth; i += line) {
      const std::int64_t count = std::min(line, depth - i);
      for (std::int64_t j = 0; j < columns; ++j) {
        const float* from = b + (column + j) * product.ldb + k + i;
        for (std::int64_t e = 0; e < count; ++e) out[(i + e) * width + j] = from[e];
      }
    }
    for (std::int64_t i = 0; columns < width && i < depth; ++i) {
      std::fill(out + i * width + columns, out + (i + 1) * width, 0.0f);
    }
    return;
  }
  for (std::int64_t i = 0; i < depth; ++i) {
    float* to = out + i * width;
    std::copy_n(b + (k + i) * product.ldb + column, columns, to);
    std::fill(to + columns, to + width, 0.0f);
  }
}

// c[Rows, columns of a tile] (+)= a panel of a times a panel of b.
template <int Rows>
void RunTile(const float* a, const float* b, std::int64_t depth, bool add, float* c,
             std::int64_t ldc) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  FloatVec sums[Rows][kTileVectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kTileVectors; ++v) {
      sums[r][v] = add ? hn::LoadU(d, c + r * ldc + v * lanes) : hn::Zero(d);
    }
  }
  for (std::int64_t i = 0; i < depth; ++i) {
    const auto first = hn::LoadU(d, b);
    const auto second = hn::LoadU(d, b + lanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const auto factor = hn::Set(d, a[r]);
      sums[r][0] = hn::MulAdd(factor, first, sums[r][0]);
      sums[r][1] = hn::MulAdd(factor, second, sums[r][1]);
    }
    a += kTileRows;
    b += kTileVectors * lanes;
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kTileVectors; ++v) hn::StoreU(sums[r][v], d, c + r * ldc + v * lanes);
  }
}

void RunRows(std::int64_t rows, const float* a, const float* b, std::int64_t depth, bool add,
             float* c, std::int64_t ldc) {
  switch (rows) {
    case 1:
      return RunTile<1>(a, b, depth, add, c, ldc);
    case 2:
      return RunTile<2>(a, b, depth, add, c, ldc);
    case 3:
      return RunTile<3>(a, b, depth, add, c, ldc);
    case 4:
      return RunTile<4>(a, b, depth, add, c, ldc);
    case 5:
      return RunTile<5>(a, b, depth, add, c, ldc);
    default:
      return RunTile<kTileRows>(a, b, depth, add, c, ldc);
  }
}

// A tile at c's right edge: computed completely in a separate buffer.
void RunEdge(std::int64_t rows, std::int64_t columns, const float* a, const float* b,
             std::int64_t depth, bool add, float* c, std::int64_t ldc) {
  HWY_ALIGN float tile[kTileRows * kTileVectors * HWY_MAX_BYTES / sizeof(float)] = {};
  const std::int64_t width = TileColumns();
  for (std::int64_t r = 0; add && r < rows; ++r)
    std::copy_n(c + r * ldc, columns, tile + r * width);
  RunRows(rows, a, b, depth, add, tile, width);
  for (std::int64_t r = 0; r < rows; ++r) std::copy_n(tile + r * width, columns, c + r * ldc);
}

}  // namespace

// Computes rows [first_row, last_row) and columns [first_column, last_column) of c.
void RegionFp32(const Matmul& product, std::int64_t first_row, std::int64_t last_row,
                std::int64_t first_column, std::int64_t last_column) {
  static thread_local cpu::ScratchBuffer a_buffer, b_buffer;
  const std::int64_t width = TileColumns();
  float* const a = a_buffer.get<float>(kBlockRows * kDepth);
  float* const b = b_buffer.get<float>((kBlockColumns + width) * kDepth);
  auto* const c = static_cast<float*>(product.c);
  for (std::int64_t column = first_column; column < last_column; column += kBlockColumns) {
    const std::int64_t columns = std::min(kBlockColumns, last_column - column);
    for (std::int64_t k = 0; k < product.k; k += kDepth) {
      const std::int64_t depth = std::min(kDepth, product.k - k);
      for (std::int64_t j = 0; j < columns; j += width) {
        PackB(product, column + j, std::min(width, columns - j), k, depth, b + j * kDepth);
      }
      const bool add = k > 0 || product.accumulate;
      for (std::int64_t row = first_row; row < last_row; row += kBlockRows) {
        const std::int64_t rows = std::min(kBlockRows, last_row - row);
        PackA(product, row, rows, k, depth, a);
        for (std::int64_t j = 0; j < columns; j += width) {
          for (std::int64_t i = 0; i < rows; i += kTileRows) {
            const std::int64_t tile_rows = std::min<std::int64_t>(kTileRows, rows - i);
            float* const to = c + (row + i) * product.ldc + column + j;
            if (j + width <= columns) {
              RunRows(tile_rows, a + i * depth, b + j * kDepth, depth, add, to, product.ldc);
            } else {
              RunEdge(tile_rows, columns - j, a + i * depth, b + j * kDepth, depth, add, to,
                      product.ldc);
            }
          }
        }
      }
    }
  }
}

std::int64_t TileColumnsFp32() {
  return TileColumns();
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {
HWY_EXPORT(RegionFp32);
HWY_EXPORT(TileColumnsFp32);
}  // namespace

namespace cpu {

void matmul_fp32_in_order(const Matmul& product) {
  // Each thread packs its own operands, so the longer side is split: only the shorter side is
  // packed more than once.
  const std::int64_t width = HWY_DYNAMIC_DISPATCH(TileColumnsFp32)();
  constexpr std::int64_t row_grain = 48;
  if (product.n >= product.m) {
    parallel_for(0, product.n, 4 * width, [&](std::int64_t first, std::int64_t last) {
      HWY_DYNAMIC_DISPATCH(RegionFp32)(product, 0, product.m, first, last);
    });
  } else {
    parallel_for(0, product.m, row_grain, [&](std::int64_t first, std::int64_t last) {
      HWY_DYNAMIC_DISPATCH(RegionFp32)(product, first, last, 0, product.n);
    });
  }
}

}  // namespace cpu
}  // namespace tessera::kernels
#endif  // HWY_ONCE
