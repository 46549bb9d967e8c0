// AdamW with bf16 moments that are rounded at random, with the CPU kernel's bits.
#include <bit>
#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/philox.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/elementwise/adamw.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int draw_width = 8;

// `value` with the bits below bf16's cleared, after `draw`, below 2^16, was added to them.
__device__ __forceinline__ float round_at_random(float value, std::uint32_t draw) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return value;
  return std::bit_cast<float>((bits + draw) & 0xffff0000u);
}

// One step. param: [n]; grad: [n] of Grad; m, v: [n]. Reads n * (8 + sizeof(Grad)) bytes, writes
// 8n.
template <class Grad>
__global__ void adamw_rounded_kernel(Layout layout, AdamWScalars<float> scalars, DecayEdges edges,
                                     RandomKey key, std::int64_t drawn_first, float* param,
                                     const Grad* grad, __nv_bfloat16* m, __nv_bfloat16* v) {
  for_places<draw_width>(layout, [&](const Place<draw_width>& place) {
    float params[draw_width], grads[draw_width], ms[draw_width], vs[draw_width], decays[draw_width];
    std::uint32_t words[draw_width];
    edges.choose(place, scalars.decay, decays);
    place.load(param, params);
    place.load(grad, grads);
    place.load(m, ms);
    place.load(v, vs);
    draw_words(key, drawn_first, place, words);
#pragma unroll
    for (int k = 0; k < draw_width; ++k) {
      scalars.update(params[k], grads[k], ms[k], vs[k], decays[k]);
      ms[k] = round_at_random(ms[k], words[k] & 0xffffu);
      vs[k] = round_at_random(vs[k], words[k] >> 16);
    }
    place.store(param, params);
    place.store(m, ms);
    place.store(v, vs);
  });
}

AdamWRoundedStep part_of_rounded(AdamWRoundedStep a, std::int64_t first, std::int64_t count) {
  a.param = at(a.param, first, DType::float32);
  a.grad = at(a.grad, first, a.grad_dtype);
  a.m = at(a.m, first, DType::bfloat16);
  a.v = at(a.v, first, DType::bfloat16);
  a.first += first;
  a.n = count;
  return a;
}

}  // namespace

void adamw_rounded_step(const AdamWRoundedStep& whole, Queue queue) {
  if (!is_floating(whole.grad_dtype) || whole.grad_dtype == DType::float64) {
    unsupported("adamw_rounded_step", whole.grad_dtype);
  }
  for_floating(whole.grad_dtype, "adamw_rounded_step", [&](auto grad_tag) {
    using Grad = typename decltype(grad_tag)::type;
    if constexpr (!std::is_same_v<Grad, double>) {
      for_parts(whole, part_of_rounded, [&](const AdamWRoundedStep& a, const DecayEdges& edges) {
        const Layout layout = layout_of_draws<draw_width>(a.n, a.first,
                                                          {{a.param, sizeof(float)},
                                                           {a.grad, sizeof(Grad)},
                                                           {a.m, sizeof(__nv_bfloat16)},
                                                           {a.v, sizeof(__nv_bfloat16)}});
        const auto state_bytes = a.n * sizeof(__nv_bfloat16);
        launch(context_of(queue),
               {"adamw_rounded_step",
                {a.n, a.first},
                {reads(a.grad, a.n * sizeof(Grad)), writes(a.param, a.n * sizeof(float)),
                 writes(a.m, state_bytes), writes(a.v, state_bytes)}},
               configuration_of<draw_width>(layout), adamw_rounded_kernel<Grad>, layout,
               AdamWScalars<float>(a), edges, a.key, a.first, static_cast<float*>(a.param),
               static_cast<const Grad*>(a.grad), static_cast<__nv_bfloat16*>(a.m),
               static_cast<__nv_bfloat16*>(a.v));
      });
    }
  });
}

}  // namespace tessera::kernels::cuda
