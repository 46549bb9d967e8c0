// bfloat16 products on AMX: b is packed into tiles chunk by chunk, and 32 x 32 blocks of c are
// summed in the unit's registers (four of its eight tiles), the others holding two tiles each of a
// and b.
#include "kernels/cpu/matmul_amx.h"

#include "kernels/base/error.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <dnnl.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "kernels/base/parallel.h"
#include "kernels/cpu/matmul_amx_pack.h"
#include "kernels/cpu/matmul_scratch.h"

// GCC 12 takes the deliberately undefined vectors inside its own intrinsics for mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tessera::kernels::cpu {
namespace {

using amx::kBlock;
using amx::kDepth;
using amx::kTileElements;

// What is summed before partial sums go to memory, and how much of b is packed at once: it has to
// stay in the second-level cache while the rows of a pass by.
constexpr std::int64_t kDepthChunk = 4096;
constexpr std::int64_t kPackedElements = 1 << 19;

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

bool ask_for_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24, avx512_bf16 = 1u << 5;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & amx_bf16) == 0 || (d & amx_tile) == 0) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a & avx512_bf16) == 0) return false;
  const auto isa = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  const auto amx_isa = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_amx);
  if ((isa & amx_isa) != amx_isa) return false;
  constexpr long request_permission = 0x1023,
                 tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

// The layout that LDTILECFG reads: all eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tiles are configured while work lasts: left configured, they would slow every context switch.
class ConfiguredTiles {
 public:
  TESSERA_AMX ConfiguredTiles() {
    // Static, because GCC 12 believes that the intrinsic reads eight bytes of it.
    static constexpr TileConfiguration configuration{};
    _tile_loadconfig(&configuration);
  }
  TESSERA_AMX ~ConfiguredTiles() { _tile_release(); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;
};

// 32 rows of a over a chunk of k: two tiles of 16 rows for each 32 columns.
struct BlockRows {
  const std::uint16_t* upper;
  const std::uint16_t* lower;
  std::int64_t row_bytes;  // between rows of a tile
  std::int64_t step;       // elements between the tiles of consecutive k
};

// c is written by the tile registers themselves where nothing else happens to an element.
struct BlockSums {
  float* sums;
  std::int64_t stride;
  bool add;  // to what is there
};

TESSERA_AMX void multiply_block(const BlockRows& a, const std::uint16_t* b,
                                std::int64_t depth_blocks, const BlockSums& c) {
  float* const right = c.sums + 16;
  float* const below = c.sums + 16 * c.stride;
  const std::int64_t c_bytes = c.stride * 4;
  if (c.add) {
    _tile_loadd(0, c.sums, c_bytes);
    _tile_loadd(1, right, c_bytes);
    _tile_loadd(2, below, c_bytes);
    _tile_loadd(3, below + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::uint16_t* upper = a.upper;
  const std::uint16_t* lower = a.lower;
  for (std::int64_t block = 0; block < depth_blocks; ++block) {
    _tile_loadd(4, upper, a.row_bytes);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kTileElements, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, lower, a.row_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    upper += a.step;
    lower += a.step;
    b += 2 * kTileElements;
  }
  _tile_stored(0, c.sums, c_bytes);
  _tile_stored(1, right, c_bytes);
  _tile_stored(2, below, c_bytes);
  _tile_stored(3, below + 16, c_bytes);
}

// c = alpha * sums (+ c) (+ bias), for a block that may reach over c's edges. Whether c was in the
// sums from the start is decided by the product's options alone, so that an edge rounds as the
// interior does.
TESSERA_AMX void finish_block(const Matmul& p, const float* sums, std::int64_t stride,
                              std::int64_t row, std::int64_t column, std::int64_t rows,
                              std::int64_t columns, bool add_c) {
  const __m512 alpha = _mm512_set1_ps(p.alpha);
  for (std::int64_t j = 0; j < columns; j += 16) {
    const auto mask = static_cast<__mmask16>((1u << std::min<std::int64_t>(16, columns - j)) - 1u);
    __m512 bias = _mm512_setzero_ps();
    if (p.bias != nullptr) {
      bias = amx::widen(
          _mm256_maskz_loadu_epi16(mask, static_cast<const std::uint16_t*>(p.bias) + column + j));
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      __m512 value = _mm512_mul_ps(_mm512_loadu_ps(sums + r * stride + j), alpha);
      const std::int64_t at = (row + r) * p.ldc + column + j;
      if (p.out_dtype == float32) {
        float* const c = static_cast<float*>(p.c) + at;
        if (add_c) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, c));
        if (p.bias != nullptr) value = _mm512_add_ps(value, bias);
        _mm512_mask_storeu_ps(c, mask, value);
      } else {
        std::uint16_t* const c = static_cast<std::uint16_t*>(p.c) + at;
        if (add_c) value = _mm512_add_ps(value, amx::widen(_mm256_maskz_loadu_epi16(mask, c)));
        if (p.bias != nullptr) value = _mm512_add_ps(value, bias);
        _mm256_mask_storeu_epi16(c, mask, amx::narrow(value));
      }
    }
  }
}

// Sums of a [32, 32] block, copied from c where c lies within the tile registers' reach only in
// part.
TESSERA_AMX void load_block(const Matmul& p, float* sums, std::int64_t row, std::int64_t column,
                            std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < kBlock; ++r) {
    for (std::int64_t j = 0; j < kBlock; j += 16) {
      const std::int64_t count = r < rows ? std::clamp<std::int64_t>(columns - j, 0, 16) : 0;
      const auto mask = static_cast<__mmask16>((1u << count) - 1u);
      _mm512_storeu_ps(sums + r * kBlock + j,
                       _mm512_maskz_loadu_ps(
                           mask, static_cast<const float*>(p.c) + (row + r) * p.ldc + column + j));
    }
  }
}

// One chunk of columns and of k of a product: b packed, and where the partial sums are.
struct Chunk {
  std::int64_t column, columns, depth, depths;  // first column and k of the chunk, and how many
  bool first, last;                             // of the chunks of k
  const std::uint16_t* packed_b;
  float* partial;  // [m rounded up, partial_stride] when there is more than one chunk of k
  std::int64_t partial_stride;
};

class Product {
 public:
  explicit Product(const Matmul& product)
      : p_(product),
        plain_(product.out_dtype == float32 && product.alpha == 1.0f && product.bias == nullptr) {}

  void run() {
    static thread_local ScratchBuffer b_buffer, partial_buffer;
    const std::int64_t depth_chunk = std::min(round_up(p_.k, kDepth), kDepthChunk);
    const std::int64_t column_chunk = std::min(
        round_up(p_.n, kBlock), std::max(kPackedElements / depth_chunk / kBlock * kBlock, kBlock));
    auto* const packed = b_buffer.get<std::uint16_t>(depth_chunk * column_chunk);
    float* const partial = p_.k > depth_chunk
                               ? partial_buffer.get<float>(round_up(p_.m, kBlock) * column_chunk)
                               : nullptr;
    for (std::int64_t column = 0; column < p_.n; column += column_chunk) {
      for (std::int64_t depth = 0; depth < p_.k; depth += depth_chunk) {
        Chunk chunk{.column = column,
                    .columns = std::min(column_chunk, p_.n - column),
                    .depth = depth,
                    .depths = std::min(depth_chunk, p_.k - depth),
                    .first = depth == 0,
                    .last = depth + depth_chunk >= p_.k,
                    .packed_b = packed,
                    .partial = partial,
                    .partial_stride = column_chunk};
        pack_b(chunk, packed);
        multiply_chunk(chunk);
      }
    }
  }

 private:
  static std::int64_t panel_elements(const Chunk& chunk) {
    return round_up(chunk.depths, kDepth) * kBlock;
  }

  void pack_b(const Chunk& chunk, std::uint16_t* packed) const {
    const auto* const b = static_cast<const std::uint16_t*>(p_.b);
    const std::int64_t panels = round_up(chunk.columns, kBlock) / kBlock;
    const std::int64_t grain = std::max<std::int64_t>(1, (1 << 15) / panel_elements(chunk));
    parallel_for(0, panels, grain, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t panel = first; panel < last; ++panel) {
        const std::int64_t column = chunk.column + panel * kBlock;
        amx::pack_b_panel({.data = p_.transpose_b ? b + column * p_.ldb + chunk.depth
                                                  : b + chunk.depth * p_.ldb + column,
                           .stride = p_.ldb,
                           .transposed = p_.transpose_b},
                          chunk.depths, std::min(kBlock, chunk.column + chunk.columns - column),
                          packed + panel * panel_elements(chunk));
      }
    });
  }

  // Threads share the rows, or the columns where rows are few.
  void multiply_chunk(const Chunk& chunk) const {
    const std::int64_t row_blocks = round_up(p_.m, kBlock) / kBlock;
    const std::int64_t panels = round_up(chunk.columns, kBlock) / kBlock;
    const double work = static_cast<double>(kBlock * kBlock) * static_cast<double>(chunk.depths);
    const auto grain = static_cast<std::int64_t>(1 + 4e6 / work);
    if (row_blocks >= panels) {
      parallel_for(0, row_blocks, 1 + grain / panels, [&](std::int64_t first, std::int64_t last) {
        multiply_blocks(chunk, first, last, 0, panels);
      });
    } else {
      parallel_for(0, panels, 1 + grain / row_blocks, [&](std::int64_t first, std::int64_t last) {
        multiply_blocks(chunk, 0, row_blocks, first, last);
      });
    }
  }

  void multiply_blocks(const Chunk& chunk, std::int64_t first_row_block,
                       std::int64_t last_row_block, std::int64_t first_panel,
                       std::int64_t last_panel) const {
    static thread_local ScratchBuffer a_buffer;
    const ConfiguredTiles tiles;
    for (std::int64_t block = first_row_block; block < last_row_block; ++block) {
      const std::int64_t row = block * kBlock;
      const BlockRows a = block_rows(chunk, row, a_buffer);
      for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
        one_block(chunk, a, row, panel);
      }
    }
  }

  // Rows of a as they lie, where tiles can be read from there; else a copy in tiles.
  BlockRows block_rows(const Chunk& chunk, std::int64_t row, ScratchBuffer& buffer) const {
    const auto* const a = static_cast<const std::uint16_t*>(p_.a);
    if (!p_.transpose_a && row + kBlock <= p_.m && chunk.depths % kDepth == 0) {
      const std::uint16_t* const upper = a + row * p_.lda + chunk.depth;
      return {upper, upper + 16 * p_.lda, p_.lda * 2, kDepth};
    }
    auto* const packed = buffer.get<std::uint16_t>(panel_elements(chunk));
    amx::pack_a_block(
        {.data = p_.transpose_a ? a + chunk.depth * p_.lda + row : a + row * p_.lda + chunk.depth,
         .stride = p_.lda,
         .transposed = p_.transpose_a},
        std::min(kBlock, p_.m - row), chunk.depths, packed);
    return {packed, packed + kTileElements, 64, 2 * kTileElements};
  }

  void one_block(const Chunk& chunk, const BlockRows& a, std::int64_t row,
                 std::int64_t panel) const {
    const std::int64_t depth_blocks = round_up(chunk.depths, kDepth) / kDepth;
    const std::uint16_t* const b = chunk.packed_b + panel * panel_elements(chunk);
    const std::int64_t column = chunk.column + panel * kBlock;
    const std::int64_t rows = std::min(kBlock, p_.m - row);
    const std::int64_t columns = std::min(kBlock, p_.n - column);
    const bool whole = rows == kBlock && columns == kBlock;
    if (plain_ && whole && chunk.partial == nullptr) {
      float* const c = static_cast<float*>(p_.c) + row * p_.ldc + column;
      return multiply_block(a, b, depth_blocks, {c, p_.ldc, p_.accumulate});
    }
    alignas(64) float own[kBlock * kBlock];
    BlockSums sums{own, kBlock, false};
    if (chunk.partial != nullptr) {
      sums = {chunk.partial + row * chunk.partial_stride + panel * kBlock, chunk.partial_stride,
              !chunk.first};
    }
    const bool starts_from_c = plain_ && p_.accumulate;
    if (starts_from_c && chunk.first) {
      load_block(p_, own, row, column, rows, columns);
      if (chunk.partial != nullptr) {
        for (std::int64_t r = 0; r < kBlock; ++r) {
          std::copy_n(own + r * kBlock, kBlock, sums.sums + r * sums.stride);
        }
      }
      sums.add = true;
    }
    multiply_block(a, b, depth_blocks, sums);
    if (chunk.last) {
      finish_block(p_, sums.sums, sums.stride, row, column, rows, columns,
                   p_.accumulate && !starts_from_c);
    }
  }

  const Matmul& p_;
  bool plain_;  // c is nothing but sums
};

}  // namespace

bool has_amx_products() {
  static const bool available = ask_for_amx();
  return available;
}

void amx_matmul(const Matmul& product) {
  Product(product).run();
}

}  // namespace tessera::kernels::cpu

#else

namespace tessera::kernels::cpu {

bool has_amx_products() {
  return false;
}

void amx_matmul(const Matmul&) {
  misuse("amx_matmul: this processor has no AMX");
}

}  // namespace tessera::kernels::cpu

#endif
