// Encodes, decodes and rounds numbers for formats of fewer bits. The loops over a block are plain:
// the compiler vectorises them for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/wire.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

struct WireNumbers {
  float value[wire_block];
};

template <class T>
HWY_INLINE void LoadWireNumbers(const void* in, std::int64_t first, std::int64_t count,
                                WireNumbers& block) {
  const T* from = static_cast<const T*>(in) + first;
  ForEach<float>(count, [&](std::int64_t i, auto access)
                            HWY_ATTR { access.Store(access.Load(from + i), block.value + i); });
}

// Loads elements [first, first + count) as fp32, with zeros behind them.
HWY_INLINE void LoadWireBlock(const void* in, DType dtype, std::int64_t first, std::int64_t count,
                              WireNumbers& block) {
  std::fill(block.value + count, block.value + wire_block, 0.0f);
  switch (dtype) {
    case DType::bfloat16:
      return LoadWireNumbers<BFloat16>(in, first, count, block);
    case DType::float16:
      return LoadWireNumbers<Float16>(in, first, count, block);
    default:
      return LoadWireNumbers<float>(in, first, count, block);
  }
}

template <class T>
HWY_INLINE void StoreWireNumbers(const WireNumbers& block, std::int64_t first, std::int64_t count,
                                 void* out) {
  T* to = static_cast<T*>(out) + first;
  ForEach<float>(count, [&](std::int64_t i, auto access)
                            HWY_ATTR { access.Store(access.Load(block.value + i), to + i); });
}

HWY_INLINE void StoreWireBlock(const WireNumbers& block, DType dtype, std::int64_t first,
                               std::int64_t count, void* out) {
  switch (dtype) {
    case DType::bfloat16:
      return StoreWireNumbers<BFloat16>(block, first, count, out);
    case DType::float16:
      return StoreWireNumbers<Float16>(block, first, count, out);
    default:
      return StoreWireNumbers<float>(block, first, count, out);
  }
}

template <WireFormat format>
HWY_INLINE std::uint8_t EncodeWireBlock(const WireNumbers& block, std::uint8_t* codes) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < wire_block; ++i) {
    largest = std::max(largest, magnitude_bits(block.value[i]));
  }
  const std::uint8_t scale = scale_of_block<format>(largest);
  if (scale == scale_of_nan) {
    std::fill(codes, codes + wire_block, std::uint8_t{0});
    return scale;
  }
  const float factor = to_block(scale);
  for (std::int64_t i = 0; i < wire_block; ++i) {
    codes[i] = encode_element<format>(block.value[i] * factor);
  }
  return scale;
}

template <WireFormat format>
HWY_INLINE void DecodeWireBlock(const std::uint8_t* codes, std::uint8_t scale, WireNumbers& block) {
  const float factor = from_block(scale);
  for (std::int64_t i = 0; i < wire_block; ++i) {
    block.value[i] = decode_element<format>(codes[i]) * factor;
  }
}

// Processes blocks [first, last).
template <WireFormat format>
HWY_NOINLINE void WireBlocks(const Wire& a, std::int64_t first, std::int64_t last) {
  auto* const payload = static_cast<std::uint8_t*>(a.payload);
  auto* const scales = static_cast<std::uint8_t*>(a.scales);
  for (std::int64_t b = first; b < last; ++b) {
    const std::int64_t at = b * wire_block;
    const std::int64_t count = std::min(wire_block, a.n - at);
    WireNumbers block;
    std::uint8_t codes[wire_block] = {};
    std::uint8_t scale = 0;
    if (a.step == WireStep::decode) {
      std::memcpy(codes, payload + at, static_cast<std::size_t>(count));
      scale = scales[b];
    } else {
      LoadWireBlock(a.in, a.in_dtype, at, count, block);
      scale = EncodeWireBlock<format>(block, codes);
    }
    if (a.step == WireStep::encode) {
      std::memcpy(payload + at, codes, static_cast<std::size_t>(count));
      scales[b] = scale;
    } else {
      DecodeWireBlock<format>(codes, scale, block);
      StoreWireBlock(block, a.out_dtype, at, count, a.out);
    }
  }
}

// Processes blocks of bf16, which has no scales.
HWY_NOINLINE void WireBFloat16(const Wire& a, std::int64_t first, std::int64_t last) {
  for (std::int64_t b = first; b < last; ++b) {
    const std::int64_t at = b * wire_block;
    const std::int64_t count = std::min(wire_block, a.n - at);
    WireNumbers block;
    if (a.step == WireStep::decode) {
      LoadWireBlock(a.payload, bfloat16, at, count, block);
    } else {
      LoadWireBlock(a.in, a.in_dtype, at, count, block);
    }
    if (a.step == WireStep::encode) {
      StoreWireBlock(block, bfloat16, at, count, a.payload);
      continue;
    }
    BFloat16 rounded[wire_block];
    StoreWireBlock(block, bfloat16, 0, count, rounded);
    LoadWireBlock(rounded, bfloat16, 0, count, block);
    StoreWireBlock(block, a.out_dtype, at, count, a.out);
  }
}

void WireRange(const Wire& a, std::int64_t first, std::int64_t last) {
  switch (a.format) {
    case WireFormat::bf16:
      return WireBFloat16(a, first, last);
    case WireFormat::int8:
      return WireBlocks<WireFormat::int8>(a, first, last);
    case WireFormat::fp8_e4m3:
      return WireBlocks<WireFormat::fp8_e4m3>(a, first, last);
    case WireFormat::fp8_e5m2:
      return WireBlocks<WireFormat::fp8_e5m2>(a, first, last);
    case WireFormat::same:
      break;
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(WireRange);

}  // namespace

void cpu::wire(const Wire& a, Queue) {
  const auto travels = [](DType dtype) { return is_floating(dtype) && dtype != float64; };
  TESSERA_REQUIRE(
      a.format != WireFormat::same && travels(a.in_dtype) && travels(a.out_dtype),
      "wire: {} to {} as {}; fp32 and the 16-bit types need a wire format other than their own",
      name_of(a.in_dtype), name_of(a.out_dtype), name_of(a.format));
  const std::int64_t blocks = (a.n + wire_block - 1) / wire_block;
  parallel_for(0, blocks, parallel_grain / wire_block, [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(WireRange)(a, first, last);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
