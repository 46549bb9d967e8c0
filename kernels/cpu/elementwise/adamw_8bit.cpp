// AdamW with moments in 8-bit codes, block by block: numbers from codes, the step, the new scales,
// and codes again. A block passes through buffers in the first-level cache, padded with zeros, so
// that all elements take the same instructions.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/adamw_8bit.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/elementwise/adamw-inl.h"
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/eight_bit.h"
#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/elementwise/decay_ranges.h"
#include "kernels/registry.h"

#ifndef TESSERA_KERNELS_EIGHT_BIT_TABLES
#define TESSERA_KERNELS_EIGHT_BIT_TABLES
namespace tessera::kernels {
namespace {

// Finds a number's magnitude by its upper bits: a cell of 2^16 neighbouring floats, between whose
// ends lies at most one of EightBitMap::below. All floats below 2^-23 are the first cell.
struct EightBitTables {
  static constexpr std::uint32_t first_bits = std::uint32_t{127 - 23} << 23;
  static constexpr int shift = 16;
  static constexpr std::uint32_t cells = (((std::uint32_t{127} << 23) - first_bits) >> shift) + 2;

  explicit EightBitTables(const EightBitMap& map) {
    for (std::size_t i = 0; i < 256; ++i) next[i] = std::bit_cast<std::int32_t>(map.below[i + 1]);
    const std::array<float, 256> all = map.values();
    std::copy(all.begin(), all.end(), values.begin());
    for (std::uint32_t cell = 1; cell < cells; ++cell) {
      const std::uint32_t bits = first_bits + ((cell - 1) << shift);
      numbers[cell] = static_cast<std::uint8_t>(map.nearest(std::bit_cast<float>(bits)));
    }
  }

  // Both are compiled for the oldest processors and not inlined, so that the tables are read
  // element by element: newer ones gather, which takes twice as long on many of them.
  [[gnu::noinline]] void decode(const std::uint8_t* codes, std::int64_t count, float* to) const {
    for (std::int64_t i = 0; i < count; ++i) to[i] = values[codes[i]];
  }
  // From the cells of magnitudes to their numbers.
  [[gnu::noinline]] void settle(const std::int32_t* magnitudes, std::int64_t count,
                                std::int32_t* cell) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t number = numbers[static_cast<std::size_t>(cell[i])];
      const std::int32_t passes = next[static_cast<std::size_t>(number)] - magnitudes[i];
      cell[i] = number + static_cast<std::int32_t>(static_cast<std::uint32_t>(passes) >> 31);
    }
  }

  std::array<std::uint8_t, cells> numbers{};  // of the least float of a cell
  std::array<std::int32_t, 256> next{};       // bits of the float where the next number begins
  std::array<float, 256> values{};            // of codes
};

const EightBitTables& signed_tables() {
  static const EightBitTables tables(signed_eight_bit_map());
  return tables;
}
const EightBitTables& unsigned_tables() {
  static const EightBitTables tables(unsigned_eight_bit_map());
  return tables;
}

}  // namespace
}  // namespace tessera::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

using IndexTag = hn::Rebind<std::int32_t, FloatTag>;
using CodeTag = hn::Rebind<std::uint8_t, FloatTag>;

// One block in padded buffers.
struct Block {
  static constexpr std::int64_t kRoom = eight_bit_block + 64;
  HWY_ALIGN float m[kRoom];
  HWY_ALIGN float v[kRoom];
  HWY_ALIGN std::int32_t part[kRoom];
  HWY_ALIGN std::int32_t number[kRoom];
  HWY_ALIGN std::uint8_t codes[kRoom];
};

// memory.number = the numbers of the magnitudes |x| / scale; 0 for NaN, as of 0 / 0. `count` is a
// multiple of a vector's lanes.
HWY_INLINE void FindNumbers(const EightBitTables& tables, const float* x, float scale,
                            std::int64_t count, Block& memory) {
  const FloatTag d;
  const IndexTag di;
  constexpr auto kBefore =
      static_cast<std::int32_t>(EightBitTables::first_bits >> EightBitTables::shift) - 1;
  const auto scales = hn::Set(d, scale);
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto quotient = hn::Div(hn::Abs(hn::Load(d, x + i)), scales);
    const auto part = hn::IfThenElseZero(hn::Le(quotient, hn::Set(d, 1.0f)), quotient);
    const auto upper = hn::ShiftRight<EightBitTables::shift>(hn::BitCast(di, part));
    hn::Store(hn::BitCast(di, part), di, memory.part + i);
    hn::Store(hn::Max(hn::Sub(upper, hn::Set(di, kBefore)), hn::Zero(di)), di, memory.number + i);
  }
  tables.settle(memory.part, count, memory.number);
}

// Writes `count` of the codes of x, whose numbers are in memory.number.
template <bool kSigned>
HWY_INLINE void Encode(const EightBitTables& tables, const float* x, float scale,
                       std::int64_t count, Block& memory, std::uint8_t* codes) {
  const FloatTag d;
  const IndexTag di;
  const CodeTag dc;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t padded = (count + lanes - 1) / lanes * lanes;
  FindNumbers(tables, x, scale, padded, memory);
  std::uint8_t* const to = padded == count ? codes : memory.codes;
  for (std::int64_t i = 0; i < padded; i += lanes) {
    auto code = hn::Load(di, memory.number + i);
    if constexpr (kSigned) {
      const auto zero = hn::Set(di, eight_bit_zero);
      const auto is_negative = hn::RebindMask(di, hn::Lt(hn::Load(d, x + i), hn::Zero(d)));
      code = hn::IfThenElse(is_negative, hn::Sub(zero, hn::Min(code, zero)), hn::Add(zero, code));
    }
    hn::StoreU(hn::DemoteTo(dc, code), dc, to + i);
  }
  if (to != codes) std::copy_n(to, count, codes);
}

// The largest magnitude of a block, from its bits; NaN if one is infinite or NaN.
HWY_INLINE float ScaleOf(hn::Vec<BitsTag> largest) {
  const std::uint32_t bits = LaneMax(largest);
  return bits < 0x7f800000u ? std::bit_cast<float>(bits) : std::numeric_limits<float>::quiet_NaN();
}

template <class Grad>
HWY_INLINE void StepBlock(const AdamW8BitStep& a, const AdamWVectors<float>& vectors,
                          const EightBitTables& with_sign, const EightBitTables& without,
                          std::int64_t block, Block& memory) {
  const FloatTag d;
  const BitsTag bits;
  const std::int64_t first = block * eight_bit_block;
  const std::int64_t count = std::min(eight_bit_block, a.n - first);
  float* const param = static_cast<float*>(a.param) + first;
  const Grad* const grad = static_cast<const Grad*>(a.grad) + first;
  auto* const m_codes = static_cast<std::uint8_t*>(a.m_codes) + first;
  auto* const v_codes = static_cast<std::uint8_t*>(a.v_codes) + first;
  auto* const m_scale = static_cast<float*>(a.m_scales) + block;
  auto* const v_scale = static_cast<float*>(a.v_scales) + block;
  with_sign.decode(m_codes, count, memory.m);
  without.decode(v_codes, count, memory.v);
  const auto m_old = hn::Set(d, *m_scale), v_old = hn::Set(d, *v_scale);
  auto m_largest = hn::Zero(bits), v_largest = hn::Zero(bits);
  const auto magnitude = [&](FloatVec x) HWY_ATTR {
    return hn::And(hn::BitCast(bits, x), hn::Set(bits, 0x7fffffffu));
  };
  ForEach<float>(count, [&](std::int64_t i, auto access) HWY_ATTR {
    auto p = access.Load(param + i);
    auto m = hn::Mul(hn::Load(d, memory.m + i), m_old);
    auto v = hn::Mul(hn::Load(d, memory.v + i), v_old);
    vectors.Step(p, access.Load(grad + i), m, v);
    access.Store(p, param + i);
    m = access.Keep(m, hn::Zero(d));
    v = access.Keep(v, hn::Zero(d));
    hn::Store(m, d, memory.m + i);
    hn::Store(v, d, memory.v + i);
    m_largest = hn::Max(m_largest, magnitude(m));
    v_largest = hn::Max(v_largest, magnitude(v));
  });
  *m_scale = ScaleOf(m_largest);
  *v_scale = ScaleOf(v_largest);
  Encode<true>(with_sign, memory.m, *m_scale, count, memory, m_codes);
  Encode<false>(without, memory.v, *v_scale, count, memory, v_codes);
}

template <class Grad>
HWY_NOINLINE void StepBlocks(const AdamW8BitStep& a, std::int64_t first, std::int64_t last) {
  const AdamWVectors<float> vectors(a);
  const EightBitTables& with_sign = signed_tables();
  const EightBitTables& without = unsigned_tables();
  Block memory{};
  for (std::int64_t block = first; block < last; ++block) {
    StepBlock<Grad>(a, vectors, with_sign, without, block, memory);
  }
}

void AdamW8BitBlocks(const AdamW8BitStep& a, std::int64_t first, std::int64_t last) {
  if (a.grad_dtype == DType::float32) {
    StepBlocks<float>(a, first, last);
  } else if (a.grad_dtype == DType::bfloat16) {
    StepBlocks<BFloat16>(a, first, last);
  } else {
    StepBlocks<Float16>(a, first, last);
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(AdamW8BitBlocks);

constexpr std::int64_t kBlocksOfTask = 64;

}  // namespace

void cpu::adamw_8bit_step(const AdamW8BitStep& a, Queue) {
  TESSERA_REQUIRE(is_floating(a.grad_dtype) && a.grad_dtype != DType::float64,
                  "adamw_8bit_step: gradients of {} for parameters of float32",
                  name_of(a.grad_dtype));
  for (int i = 0; i < a.decay.count; ++i) {
    TESSERA_REQUIRE(a.decay.edges[i] % eight_bit_block == 0,
                    "adamw_8bit_step: weight decay begins or ends at element {}, inside a block",
                    a.decay.edges[i]);
  }
  const std::int64_t blocks = (a.n + eight_bit_block - 1) / eight_bit_block;
  parallel_for(0, blocks, kBlocksOfTask, [&](std::int64_t begin, std::int64_t end) {
    for_decay_ranges(a, begin * eight_bit_block, end * eight_bit_block,
                     [](const AdamW8BitStep& step, std::int64_t first, std::int64_t last) {
                       HWY_DYNAMIC_DISPATCH(AdamW8BitBlocks)
                       (step, first / eight_bit_block, last / eight_bit_block);
                     });
  });
}

}  // namespace tessera::kernels
#endif
