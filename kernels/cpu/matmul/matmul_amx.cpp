// bfloat16 products on AMX: b is packed into tiles chunk by chunk. 32 x 32 blocks of c are summed
// in four of the unit's eight tile registers; the others hold two tiles each of a and b.
#include "kernels/cpu/matmul/matmul_amx.h"

#include "base/error.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "base/parallel.h"
#include "kernels/cpu/matmul/matmul_amx_block.h"
#include "kernels/cpu/matmul/matmul_amx_pack.h"
#include "kernels/cpu/matmul/matmul_onednn.h"
#include "kernels/cpu/matmul/matmul_scratch.h"

// GCC 12 reports the deliberately undefined vectors inside its own intrinsics as mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tessera::kernels::cpu {
namespace {

using amx::Background;
using amx::BlockRows;
using amx::BlockSums;
using amx::FinishedBlock;
using amx::Finisher;
using amx::kBlock;
using amx::kDepth;
using amx::kTileElements;
using amx::UpcomingRows;

// Rows and k that are worked on at once, and how much of b is packed: the slice of b that belongs
// to a chunk of k, the packed rows of a and their partial sums share the second-level cache.
constexpr std::int64_t kGroupBlocks = 4;
constexpr std::int64_t kDepthChunk = 512;
constexpr std::int64_t kPackedElements = 1 << 20;

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

bool ask_for_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24, avx512_bf16 = 1u << 5;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & amx_bf16) == 0 || (d & amx_tile) == 0) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a & avx512_bf16) == 0) return false;
  if (!onednn_uses(dnnl_cpu_isa_avx512_core_amx)) return false;
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

// Tiles stay configured only during work: otherwise they would slow every context switch.
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

class Product {
 public:
  explicit Product(const Matmul& product)
      : p_(product),
        plain_(product.out_dtype == float32 && product.alpha == 1.0f && product.bias == nullptr),
        depth_chunks_((product.k + kDepthChunk - 1) / kDepthChunk),
        depth_chunk_(round_up((product.k + depth_chunks_ - 1) / depth_chunks_, kDepth)),
        padded_depth_(round_up(product.k, kDepth)) {}

  void run() {
    static thread_local ScratchBuffer buffer;
    const std::int64_t most =
        std::max(kPackedElements / padded_depth_ / kBlock * kBlock, 2 * kBlock);
    const std::int64_t chunk = std::min(round_up(p_.n, kBlock), most);
    packed_b_ = buffer.get<std::uint16_t>(padded_depth_ * chunk);
    for (first_column_ = 0; first_column_ < p_.n; first_column_ += chunk) {
      panels_ = round_up(std::min(chunk, p_.n - first_column_), kBlock) / kBlock;
      pack_b();
      multiply();
    }
  }

 private:
  [[nodiscard]] std::int64_t depths(std::int64_t depth) const {
    return std::min(depth_chunk_, p_.k - depth);
  }
  // Packed b: one chunk of k after another, and inside a chunk one panel after another.
  [[nodiscard]] std::uint16_t* panel_of_b(std::int64_t depth, std::int64_t panel) const {
    return packed_b_ + kBlock * (depth * panels_ + round_up(depths(depth), kDepth) * panel);
  }

  void pack_b() const {
    const auto* const b = static_cast<const std::uint16_t*>(p_.b);
    const std::int64_t grain = std::max<std::int64_t>(1, (1 << 16) / (padded_depth_ * kBlock));
    parallel_for(0, panels_, grain, [&](std::int64_t first, std::int64_t last) {
      // Goes along a row of memory first, which the processor's prefetcher follows.
      const std::int64_t step = p_.transpose_b ? depth_chunk_ : kDepth;
      for (std::int64_t depth = 0; depth < p_.k; depth += step) {
        const std::int64_t chunk = depth / depth_chunk_ * depth_chunk_;
        for (std::int64_t panel = first; panel < last; ++panel) {
          const std::int64_t column = first_column_ + panel * kBlock;
          const auto* const from =
              p_.transpose_b ? b + column * p_.ldb + depth : b + depth * p_.ldb + column;
          amx::pack_b_panel({.data = from, .stride = p_.ldb, .transposed = p_.transpose_b},
                            std::min(step, p_.k - depth), std::min(kBlock, p_.n - column),
                            panel_of_b(chunk, panel) + (depth - chunk) * kBlock);
        }
      }
    });
  }

  // Threads split the rows, or the columns if there are few rows.
  void multiply() const {
    const std::int64_t row_blocks = round_up(p_.m, kBlock) / kBlock;
    const std::int64_t blocks_worth_a_thread = 1 + (1 << 22) / (kBlock * kBlock * padded_depth_);
    if (row_blocks >= panels_) {
      parallel_for(
          0, row_blocks, 1 + blocks_worth_a_thread / panels_,
          [&](std::int64_t first, std::int64_t last) { multiply_blocks(first, last, 0, panels_); });
    } else {
      parallel_for(0, panels_, 1 + blocks_worth_a_thread / row_blocks,
                   [&](std::int64_t first, std::int64_t last) {
                     multiply_blocks(0, row_blocks, first, last);
                   });
    }
  }

  void multiply_blocks(std::int64_t first_block, std::int64_t last_block, std::int64_t first_panel,
                       std::int64_t last_panel) const {
    static thread_local ScratchBuffer a_buffer, partial_buffer;
    const std::int64_t rows_at_once = kGroupBlocks * kBlock;
    auto* const packed_a = a_buffer.get<std::uint16_t>(rows_at_once * depth_chunk_);
    float* const partial =
        depth_chunks_ > 1 ? partial_buffer.get<float>(rows_at_once * panels_ * kBlock) : nullptr;
    const ConfiguredTiles tiles;
    for (std::int64_t group = first_block; group < last_block; group += kGroupBlocks) {
      const std::int64_t blocks = std::min(kGroupBlocks, last_block - group);
      for (std::int64_t depth = 0; depth < p_.k; depth += depth_chunk_) {
        const bool in_place =
            !p_.transpose_a && (group + blocks) * kBlock <= p_.m && depths(depth) % kDepth == 0;
        if (!in_place) pack_a(group, blocks, depth, packed_a);
        for (std::int64_t block = 0; block < blocks; ++block) {
          const std::int64_t row = (group + block) * kBlock;
          RowOfBlocks blocks_of_row{
              .row = row,
              .depth = depth,
              .a = in_place ? rows_in_place(row, depth) : packed_rows(packed_a, block, depth),
              .in_place = in_place,
              .partial = partial == nullptr ? nullptr : partial + block * kBlock * panels_ * kBlock,
              .first_panel = first_panel,
              .last_panel = last_panel};
          multiply_row(blocks_of_row);
        }
      }
    }
  }

  // 32 rows of c, over a chunk of k.
  struct RowOfBlocks {
    std::int64_t row, depth;
    BlockRows a;
    bool in_place;   // a is read from the tensor
    float* partial;  // sums between chunks of k, or null with one chunk
    std::int64_t first_panel, last_panel;
  };

  [[nodiscard]] BlockRows rows_in_place(std::int64_t row, std::int64_t depth) const {
    const auto* const upper = static_cast<const std::uint16_t*>(p_.a) + row * p_.lda + depth;
    return {upper, upper + 16 * p_.lda, p_.lda * 2, kDepth};
  }

  [[nodiscard]] BlockRows packed_rows(const std::uint16_t* packed, std::int64_t block,
                                      std::int64_t depth) const {
    const std::uint16_t* const upper = packed + block * kBlock * round_up(depths(depth), kDepth);
    return {upper, upper + kTileElements, 64, 2 * kTileElements};
  }

  void pack_a(std::int64_t first_block, std::int64_t blocks, std::int64_t depth,
              std::uint16_t* packed) const {
    const auto* const a = static_cast<const std::uint16_t*>(p_.a);
    const std::int64_t row = first_block * kBlock;
    const auto* const from = p_.transpose_a ? a + depth * p_.lda + row : a + row * p_.lda + depth;
    amx::pack_a_blocks({.data = from, .stride = p_.lda, .transposed = p_.transpose_a},
                       std::min(blocks * kBlock, p_.m - row), depths(depth), packed);
  }

  // Block by block; the sums of one are finished while those of its right neighbour are computed.
  void multiply_row(const RowOfBlocks& r) const {
    alignas(64) float own[2][kBlock * kBlock];
    alignas(64) float start[kBlock * kBlock];
    const std::int64_t depth_blocks = round_up(depths(r.depth), kDepth) / kDepth;
    const bool last_chunk = r.depth + depth_chunk_ >= p_.k;
    Background background{Finisher(p_, p_.accumulate && !plain_), {}, {}};
    for (std::int64_t panel = r.first_panel; panel < r.last_panel; ++panel) {
      FinishedBlock block = block_of_c(r.row, panel);
      const bool in_c = plain_ && block.rows == kBlock && block.columns == kBlock;
      float* sums = own[panel % 2];
      if (in_c) {
        sums = static_cast<float*>(p_.c) + r.row * p_.ldc + block.column;
        block.stride = p_.ldc;
      } else if (r.partial != nullptr) {
        sums = r.partial + panel * kBlock;
        block.stride = panels_ * kBlock;
      }
      block.sums = sums;
      BlockSums c{
          .start = nullptr, .start_stride = block.stride, .sums = sums, .stride = block.stride};
      if (r.depth > 0 || (in_c && p_.accumulate)) {
        c.start = sums;
      } else if (plain_ && p_.accumulate) {
        amx::load_block(p_, start, block.row, block.column, block.rows, block.columns);
        c.start = start;
        c.start_stride = kBlock;
      }
      background.next_c =
          last_chunk && panel + 1 < r.last_panel ? upcoming_c(r.row, panel + 1) : UpcomingRows{};
      background.next_a = r.in_place ? upcoming_a(r, panel) : UpcomingRows{};
      amx::multiply_block(r.a, panel_of_b(r.depth, panel), depth_blocks, c, background);
      if (last_chunk && !in_c) background.finisher.take(block, depth_blocks);
    }
    background.finisher.finish_all();
  }

  [[nodiscard]] FinishedBlock block_of_c(std::int64_t row, std::int64_t panel) const {
    const std::int64_t column = first_column_ + panel * kBlock;
    return {.sums = nullptr,
            .stride = kBlock,
            .row = row,
            .column = column,
            .rows = std::min(kBlock, p_.m - row),
            .columns = std::min(kBlock, p_.n - column)};
  }

  [[nodiscard]] UpcomingRows upcoming_c(std::int64_t row, std::int64_t panel) const {
    const std::int64_t bytes = p_.out_dtype == float32 ? 4 : 2;
    const std::int64_t column = first_column_ + panel * kBlock;
    return {static_cast<const char*>(p_.c) + (row * p_.ldc + column) * bytes, p_.ldc * bytes,
            std::min(kBlock, p_.m - row)};
  }

  // The next rows of a are divided among the panels of this row of blocks.
  [[nodiscard]] UpcomingRows upcoming_a(const RowOfBlocks& r, std::int64_t panel) const {
    const std::int64_t panels = r.last_panel - r.first_panel;
    const std::int64_t each = (kBlock + panels - 1) / panels;
    const std::int64_t first = r.row + kBlock + (panel - r.first_panel) * each;
    const std::int64_t last = std::min({first + each, r.row + 2 * kBlock, p_.m});
    return {static_cast<const char*>(p_.a) + (first * p_.lda + r.depth) * 2, p_.lda * 2,
            std::max<std::int64_t>(0, last - first)};
  }

  const Matmul& p_;
  // True if c is only sums, which start from its contents and may be computed in it. The options
  // decide where sums start, but never depend on a block's place, so an edge rounds like the
  // interior.
  bool plain_;
  std::int64_t depth_chunks_, depth_chunk_, padded_depth_;
  std::int64_t first_column_ = 0, panels_ = 0;
  std::uint16_t* packed_b_ = nullptr;
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
