// Philox4x32-10 for a run of blocks at once, one block per 64-bit lane. Included by kernels once
// per instruction set, after simd-inl.h.
#if defined(TESSERA_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_PHILOX_INL_H_
#undef TESSERA_KERNELS_CPU_PHILOX_INL_H_
#else
#define TESSERA_KERNELS_CPU_PHILOX_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/random.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

using BlockTag = hn::ScalableTag<std::uint64_t>;
using WordTag = hn::Repartition<std::uint32_t, BlockTag>;

// Number of blocks that are made at once.
HWY_INLINE std::int64_t PhiloxBatch() {
  return static_cast<std::int64_t>(hn::Lanes(BlockTag()));
}

// Writes the words of one batch of blocks from `first` on. A lane's lower half holds a word. Its
// upper half is arbitrary between rounds, because the 32-bit multiply does not read it.
HWY_INLINE void PhiloxBatchWords(RandomKey key, std::uint64_t first, std::uint32_t* words) {
  const BlockTag d;
  const WordTag dw;
  const std::size_t lanes = hn::Lanes(d);
  // Lane 2i counts block i and lane 2i+1 block i + lanes/2, so that interleaving neighbours yields
  // blocks in order.
  const auto iota = hn::Iota(d, 0);
  const auto upper_half =
      hn::IfThenElseZero(hn::Ne(hn::And(iota, hn::Set(d, 1)), hn::Zero(d)), hn::Set(d, lanes / 2));
  auto x0 = hn::Add(hn::Set(d, first), hn::Add(hn::ShiftRight<1>(iota), upper_half));
  auto x1 = hn::ShiftRight<32>(x0);
  auto x2 = hn::Set(d, key.stream);
  auto x3 = hn::Set(d, key.stream >> 32);
  const auto multiplier0 = hn::BitCast(dw, hn::Set(d, 0xD2511F53u));
  const auto multiplier1 = hn::BitCast(dw, hn::Set(d, 0xCD9E8D57u));
  auto key0 = static_cast<std::uint32_t>(key.seed);
  auto key1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto product0 = hn::MulEven(hn::BitCast(dw, x0), multiplier0);
    const auto product1 = hn::MulEven(hn::BitCast(dw, x2), multiplier1);
    x0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), x1), hn::Set(d, key0));
    x1 = product1;
    x2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), x3), hn::Set(d, key1));
    x3 = product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const auto pack = [&](auto low, auto high) HWY_ATTR {
    return hn::BitCast(d,
                       hn::OddEven(hn::BitCast(dw, hn::ShiftLeft<32>(high)), hn::BitCast(dw, low)));
  };
  const auto words01 = pack(x0, x1);
  const auto words23 = pack(x2, x3);
  hn::StoreU(hn::BitCast(dw, hn::InterleaveLower(d, words01, words23)), dw, words);
  hn::StoreU(hn::BitCast(dw, hn::InterleaveUpper(d, words01, words23)), dw, words + 2 * lanes);
}

// The words of elements [first, first + count), in order.
template <std::int64_t kCapacity>
class PhiloxWords {
 public:
  HWY_INLINE const std::uint32_t* Generate(RandomKey key, std::int64_t first, std::int64_t count) {
    const std::int64_t skipped = first % 4;
    const std::int64_t blocks = (skipped + count + 3) / 4;
    for (std::int64_t b = 0; b < blocks; b += PhiloxBatch()) {
      PhiloxBatchWords(key, static_cast<std::uint64_t>(first / 4 + b), words_ + 4 * b);
    }
    return words_ + skipped;
  }

 private:
  // Room for a partly used first and last block, for a batch that is rounded up, and for the whole
  // vector that is read at the last elements.
  static constexpr std::int64_t kSlack =
      4 * 2 * static_cast<std::int64_t>(hn::MaxLanes(BlockTag())) + 32;
  HWY_ALIGN std::uint32_t words_[kCapacity + kSlack];
};

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
