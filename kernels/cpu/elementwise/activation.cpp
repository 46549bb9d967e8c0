// Bias with GELU, and SwiGLU, forward and backward: one pass over rows, the nonlinearity in
// registers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/activation.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/map-inl.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/simd_math-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

template <bool exact, class V>
HWY_INLINE WithDerivative<V> GeluWithDerivative(V x) {
  if constexpr (exact) {
    return GeluErfWithDerivative(x);
  } else {
    return GeluTanhWithDerivative(x);
  }
}

template <bool exact, class T>
void BiasGeluRow(const T* x, const T* bias, T* out, std::int64_t n) {
  const auto gelu = [](auto input) HWY_ATTR { return GeluWithDerivative<exact>(input).value; };
  if (bias == nullptr) return Map(n, out, gelu, x);
  Map(
      n, out, [&](auto input, auto b) HWY_ATTR { return gelu(hn::Add(input, b)); }, x, bias);
}

template <bool exact, class T>
void BiasGeluBackwardRow(const T* dout, const T* x, const T* bias, T* dx, T* out, std::int64_t n) {
  ForEachPair<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
    auto input = access.LoadStream(x + i);
    if (bias != nullptr) {
      input = Each<T>([](auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, input,
                      access.LoadStream(bias + i));
    }
    const auto gradient = access.LoadStream(dout + i);
    const auto first = GeluWithDerivative<exact>(input.first);
    const auto second = GeluWithDerivative<exact>(input.second);
    access.StoreStream(Pair<T>{hn::Mul(gradient.first, first.derivative),
                               hn::Mul(gradient.second, second.derivative)},
                       dx + i);
    // The forward's own expression: the bits are the same with and without recomputation.
    if (out != nullptr) access.StoreStream(Pair<T>{first.value, second.value}, out + i);
  });
}

// Without a bias rows do not matter, so the array is one run of elements.
template <class Arguments, class Row>
void ForRows(const Arguments& a, bool has_bias, Row&& row) {
  if (has_bias) {
    parallel_for(0, a.rows, cpu::rows_grain(a.dim), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) row(r * a.dim, a.dim);
    });
  } else {
    parallel_for(0, a.rows * a.dim, cpu::parallel_grain,
                 [&](std::int64_t first, std::int64_t last) { row(first, last - first); });
  }
}

void BiasGeluForward(const BiasGelu& a) {
  cpu::for_floating(a.dtype, "bias_gelu", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* x = static_cast<const T*>(a.x);
    const auto* bias = static_cast<const T*>(a.bias);
    auto* out = static_cast<T*>(a.out);
    ForRows(a, bias != nullptr, [&](std::int64_t start, std::int64_t n) {
      if (a.exact) {
        BiasGeluRow<true>(x + start, bias, out + start, n);
      } else {
        BiasGeluRow<false>(x + start, bias, out + start, n);
      }
    });
  });
}

void BiasGeluGradient(const BiasGeluBackward& a) {
  cpu::for_floating(a.dtype, "bias_gelu_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* dout = static_cast<const T*>(a.dout);
    const auto* x = static_cast<const T*>(a.x);
    const auto* bias = static_cast<const T*>(a.bias);
    auto* dx = static_cast<T*>(a.dx);
    auto* out = static_cast<T*>(a.out);
    ForRows(a, bias != nullptr, [&](std::int64_t start, std::int64_t n) {
      T* out_row = out == nullptr ? nullptr : out + start;
      if (a.exact) {
        BiasGeluBackwardRow<true>(dout + start, x + start, bias, dx + start, out_row, n);
      } else {
        BiasGeluBackwardRow<false>(dout + start, x + start, bias, dx + start, out_row, n);
      }
    });
  });
}

template <class T>
void SwiGluRow(const T* gate, const T* up, T* out, std::int64_t n) {
  Map(
      n, out, [](auto g, auto u) HWY_ATTR { return hn::Mul(Silu(g), u); }, gate, up);
}

template <class V>
struct SwiGluGradients {
  V gate, up, out;
};

template <class V>
HWY_INLINE SwiGluGradients<V> SwiGluGradientsOf(V dout, V gate, V up) {
  const WithDerivative<V> silu = SiluWithDerivative(gate);
  // The forward's own expression: the bits are the same with and without recomputation.
  return {hn::Mul(hn::Mul(dout, up), silu.derivative), hn::Mul(dout, silu.value),
          hn::Mul(silu.value, up)};
}

template <class T>
struct SwiGluBackwardRow {
  const T* dout;
  const T* gate;
  const T* up;
  T* dgate;
  T* dup;
  T* out;

  void Run(std::int64_t n) const {
    ForEachPair<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
      const auto g = access.LoadStream(gate + i);
      const auto u = access.LoadStream(up + i);
      const auto d = access.LoadStream(dout + i);
      const auto first = SwiGluGradientsOf(d.first, g.first, u.first);
      const auto second = SwiGluGradientsOf(d.second, g.second, u.second);
      access.StoreStream(Pair<T>{first.gate, second.gate}, dgate + i);
      access.StoreStream(Pair<T>{first.up, second.up}, dup + i);
      if (out != nullptr) access.StoreStream(Pair<T>{first.out, second.out}, out + i);
    });
  }
};

void SwiGluForward(const SwiGlu& a) {
  cpu::for_floating(a.dtype, "swiglu", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* gate = static_cast<const T*>(a.gate);
    const auto* up = static_cast<const T*>(a.up);
    auto* out = static_cast<T*>(a.out);
    parallel_for(0, a.rows, cpu::rows_grain(a.dim), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        SwiGluRow(gate + r * a.gate_stride, up + r * a.up_stride, out + r * a.dim, a.dim);
      }
    });
  });
}

void SwiGluGradient(const SwiGluBackward& a) {
  cpu::for_floating(a.dtype, "swiglu_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const SwiGluBackwardRow<T> all{static_cast<const T*>(a.dout), static_cast<const T*>(a.gate),
                                   static_cast<const T*>(a.up),   static_cast<T*>(a.dgate),
                                   static_cast<T*>(a.dup),        static_cast<T*>(a.out)};
    parallel_for(0, a.rows, cpu::rows_grain(a.dim), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        SwiGluBackwardRow<T> row = all;
        row.dout += r * a.dim;
        row.gate += r * a.gate_stride;
        row.up += r * a.up_stride;
        row.dgate += r * a.gate_stride;
        row.dup += r * a.up_stride;
        if (row.out != nullptr) row.out += r * a.dim;
        row.Run(a.dim);
      }
    });
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(BiasGeluForward);
HWY_EXPORT(BiasGeluGradient);
HWY_EXPORT(SwiGluForward);
HWY_EXPORT(SwiGluGradient);

void cpu::bias_gelu(const BiasGelu& a, Queue) {
  HWY_DYNAMIC_DISPATCH(BiasGeluForward)(a);
}
void cpu::bias_gelu_backward(const BiasGeluBackward& a, Queue) {
  HWY_DYNAMIC_DISPATCH(BiasGeluGradient)(a);
}
void cpu::swiglu(const SwiGlu& a, Queue) {
  HWY_DYNAMIC_DISPATCH(SwiGluForward)(a);
}
void cpu::swiglu_backward(const SwiGluBackward& a, Queue) {
  HWY_DYNAMIC_DISPATCH(SwiGluGradient)(a);
}

}  // namespace tessera::kernels
#endif
