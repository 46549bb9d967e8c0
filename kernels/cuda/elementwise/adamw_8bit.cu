// AdamW with moments in 8-bit codes, with the CPU kernel's bits. A warp has a block: 8 neighbouring
// elements a thread. The maps are copied to shared memory, where each thread reads other entries.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/eight_bit.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/elementwise/adamw.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int block_width = static_cast<int>(eight_bit_block) / warp_size;

// Decades of the maps, and the numbers below them.
constexpr int ranges = 8;

// A map as the argument of a kernel, which lies in constant memory. A positive number x of range r
// is number first[r] + floor(x * factor[r] + offset[r]) or one beside it.
struct MapNumbers {
  bool is_signed;
  int count;
  float magnitudes[256];
  float least[ranges], factor[ranges], offset[ranges];
  int first[ranges], last[ranges];
};

// The same in shared memory, with EightBitMap::below.
struct SharedMap {
  MapNumbers numbers;
  float below[257];
};

MapNumbers numbers_of(const EightBitMap& map) {
  MapNumbers numbers{};
  numbers.is_signed = map.is_signed;
  numbers.count = map.count;
  std::copy(map.magnitudes, map.magnitudes + 256, numbers.magnitudes);
  double end = 1e-6;
  int parts = map.is_signed ? 1 : 2, first = 1;
  for (int range = 1; range < ranges; ++range) {
    numbers.least[range] = static_cast<float>(end / 10);
    numbers.factor[range] = static_cast<float>(parts / (0.9 * end));
    numbers.offset[range] = static_cast<float>(-0.1 * parts / 0.9);
    numbers.first[range] = first;
    numbers.last[range] = first + parts - 1;
    first += parts;
    parts *= 2;
    end *= 10;
  }
  return numbers;
}

__device__ __forceinline__ void copy_to_shared(const MapNumbers& from, SharedMap& to) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  if (threadIdx.x == 0) to.numbers = from;
  __syncthreads();
  const float* const magnitudes = to.numbers.magnitudes;
  for (int i = static_cast<int>(threadIdx.x); i < 257; i += map_threads) {
    float below = i == 0 ? -infinity : infinity;
    if (i > 0 && i < from.count) below = (magnitudes[i - 1] + magnitudes[i]) / 2;
    to.below[i] = i == 1 && !from.is_signed ? 0.0f : below;
  }
}

__device__ __forceinline__ int number_of(const SharedMap& map, float x) {
  const MapNumbers& numbers = map.numbers;
  int range = 0;
#pragma unroll
  for (int i = 1; i < ranges; ++i) range += x >= numbers.least[i] ? 1 : 0;
  const int first = numbers.first[range], last = numbers.last[range];
  const float steps = product(x, numbers.factor[range]) + numbers.offset[range];
  int number = first + static_cast<int>(steps);
  number = number < first ? first : number > last ? last : number;
  return number + (x > map.below[number + 1] ? 1 : 0) - (x <= map.below[number] ? 1 : 0);
}

__device__ __forceinline__ float signed_value(const SharedMap& map, int code) {
  const float* const magnitudes = map.numbers.magnitudes;
  return code >= eight_bit_zero ? magnitudes[code - eight_bit_zero]
                                : -magnitudes[eight_bit_zero - code];
}

// x / scale, or 0 for NaN.
__device__ __forceinline__ float part_of_scale(float x, float scale) {
  const float part = x / scale;
  return part <= 1.0f ? part : 0.0f;
}

__device__ __forceinline__ std::uint8_t signed_code(const SharedMap& map, float x, float scale) {
  const int number = number_of(map, part_of_scale(fabsf(x), scale));
  const int below_zero = eight_bit_zero - (number < eight_bit_zero ? number : eight_bit_zero);
  return static_cast<std::uint8_t>(x < 0 ? below_zero : eight_bit_zero + number);
}

__device__ __forceinline__ std::uint32_t bits_of_magnitude(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
}

struct LargestBits {
  __device__ __forceinline__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return a > b ? a : b;
  }
};

// The largest magnitude of a block from its bits; NaN if one is not finite.
__device__ __forceinline__ float scale_of(std::uint32_t largest) {
  return std::bit_cast<float>(largest < 0x7f800000u ? largest : 0x7fc00000u);
}

struct Maps {
  SharedMap with_sign, without;
};

// param: [n]; grad: [n] of Grad; codes: [n]; scales: [ceil(n / 256)]. Reads n * (6 + sizeof(Grad))
// bytes, writes 6n; the scales are 1/32 n each way.
template <class Grad>
__global__ void __launch_bounds__(map_threads)
    adamw_8bit_kernel(Layout layout, AdamWScalars<float> scalars, DecayEdges edges,
                      MapNumbers signed_map, MapNumbers unsigned_map, float* param,
                      const Grad* grad, std::uint8_t* m_codes, std::uint8_t* v_codes,
                      float* m_scales, float* v_scales) {
  auto& maps = shared_memory<Maps>();
  copy_to_shared(signed_map, maps.with_sign);
  copy_to_shared(unsigned_map, maps.without);
  __syncthreads();
  for_places<block_width>(layout, [&](const Place<block_width>& place) {
    const bool any = place.first < place.n;
    const std::int64_t block = any ? place.first / eight_bit_block : 0;
    float params[block_width], grads[block_width], ms[block_width], vs[block_width],
        decays[block_width];
    std::uint8_t m_of[block_width], v_of[block_width];
    edges.choose(place, scalars.decay, decays);
    place.load(param, params);
    place.load(grad, grads);
    place.load(m_codes, m_of);
    place.load(v_codes, v_of);
    const float m_scale = any ? m_scales[block] : 0.0f;
    const float v_scale = any ? v_scales[block] : 0.0f;
    std::uint32_t m_largest = 0, v_largest = 0;
#pragma unroll
    for (int k = 0; k < block_width; ++k) {
      const bool exists = place.holds(place.index(k));
      ms[k] = exists ? product(signed_value(maps.with_sign, m_of[k]), m_scale) : 0.0f;
      vs[k] = exists ? product(maps.without.numbers.magnitudes[v_of[k]], v_scale) : 0.0f;
      scalars.update(params[k], grads[k], ms[k], vs[k], decays[k]);
      if (!exists) continue;
      m_largest = LargestBits{}(m_largest, bits_of_magnitude(ms[k]));
      v_largest = LargestBits{}(v_largest, bits_of_magnitude(vs[k]));
    }
    place.store(param, params);
    const float new_m = scale_of(warp_reduce<LargestBits>(m_largest));
    const float new_v = scale_of(warp_reduce<LargestBits>(v_largest));
#pragma unroll
    for (int k = 0; k < block_width; ++k) {
      m_of[k] = signed_code(maps.with_sign, ms[k], new_m);
      v_of[k] = static_cast<std::uint8_t>(number_of(maps.without, part_of_scale(vs[k], new_v)));
    }
    place.store(m_codes, m_of);
    place.store(v_codes, v_of);
    if (any && threadIdx.x % warp_size == 0) {
      m_scales[block] = new_m;
      v_scales[block] = new_v;
    }
  });
}

AdamW8BitStep part_of_8bit(AdamW8BitStep a, std::int64_t first, std::int64_t count) {
  a.param = at(a.param, first, DType::float32);
  a.grad = at(a.grad, first, a.grad_dtype);
  a.m_codes = at(a.m_codes, first, DType::uint8);
  a.v_codes = at(a.v_codes, first, DType::uint8);
  a.m_scales = at(a.m_scales, first / eight_bit_block, DType::float32);
  a.v_scales = at(a.v_scales, first / eight_bit_block, DType::float32);
  a.n = count;
  return a;
}

// Warps have whole blocks: vectors only if they begin at the array's beginning.
template <class Grad>
Layout layout_of_blocks(const AdamW8BitStep& a) {
  const bool vectors = groups_are_aligned<block_width>({a.param, sizeof(float)}, 0) &&
                       groups_are_aligned<block_width>({a.grad, sizeof(Grad)}, 0) &&
                       groups_are_aligned<block_width>({a.m_codes, 1}, 0) &&
                       groups_are_aligned<block_width>({a.v_codes, 1}, 0);
  return {a.n, 0, vectors, true};
}

}  // namespace

void adamw_8bit_step(const AdamW8BitStep& whole, Queue queue) {
  if (!is_floating(whole.grad_dtype) || whole.grad_dtype == DType::float64) {
    unsupported("adamw_8bit_step", whole.grad_dtype);
  }
  for (int i = 0; i < whole.decay.count; ++i) {
    if (whole.decay.edges[i] % eight_bit_block != 0) {
      misuse_of("adamw_8bit_step", "weight decay begins or ends inside a block, at element",
                whole.decay.edges[i]);
    }
  }
  for_floating(whole.grad_dtype, "adamw_8bit_step", [&](auto grad_tag) {
    using Grad = typename decltype(grad_tag)::type;
    if constexpr (!std::is_same_v<Grad, double>) {
      for_parts(whole, part_of_8bit, [&](const AdamW8BitStep& a, const DecayEdges& edges) {
        const Layout layout = layout_of_blocks<Grad>(a);
        const std::int64_t blocks = (a.n + eight_bit_block - 1) / eight_bit_block;
        const auto scale_bytes = blocks * static_cast<std::int64_t>(sizeof(float));
        launch(context_of(queue),
               {"adamw_8bit_step",
                {a.n},
                {reads(a.grad, a.n * sizeof(Grad)), writes(a.param, a.n * sizeof(float)),
                 writes(a.m_codes, a.n), writes(a.v_codes, a.n), writes(a.m_scales, scale_bytes),
                 writes(a.v_scales, scale_bytes)}},
               configuration_of<block_width>(layout), adamw_8bit_kernel<Grad>, layout,
               AdamWScalars<float>(a), edges, numbers_of(signed_eight_bit_map()),
               numbers_of(unsigned_eight_bit_map()), static_cast<float*>(a.param),
               static_cast<const Grad*>(a.grad), static_cast<std::uint8_t*>(a.m_codes),
               static_cast<std::uint8_t*>(a.v_codes), static_cast<float*>(a.m_scales),
               static_cast<float*>(a.v_scales));
      });
    }
  });
}

}  // namespace tessera::kernels::cuda
