// Bias with GELU, and SwiGLU, forward and backward: one pass, the nonlinearity in registers.
#include <cstdint>

#include "kernels/cuda/device/activation_math.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

// x + bias, with bias repeated over rows of dim; null: only x.
template <int width, class T>
__device__ __forceinline__ void load_biased(const Place<width>& place, const T* x, const T* bias,
                                            std::int64_t dim, Compute<T> (&values)[width]) {
  place.load(x, values);
  if (bias == nullptr) return;
  Compute<T> terms[width];
  place.load_repeated(bias, dim, terms);
#pragma unroll
  for (int k = 0; k < width; ++k) values[k] += terms[k];
}

// out[r,i] = gelu(x[r,i] + bias[i]). x, out: [rows, dim] of T, out may be x; bias: [dim] or null.
// Reads n*sizeof(T) bytes of x and dim*sizeof(T) of bias, writes n*sizeof(T), n = rows*dim.
template <bool exact, class T>
__global__ void bias_gelu_kernel(Layout layout, const T* x, const T* bias, T* out,
                                 std::int64_t dim) {
  constexpr int width = width_for<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    Compute<T> values[width];
    load_biased(place, x, bias, dim, values);
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = gelu<exact, T>(values[k]);
    place.store(out, values);
  });
}

// dx = dout * gelu'(x + bias); out, unless null, gets gelu(x + bias) by the forward's own
// expression, so the bits are the same with and without recomputation. All [rows, dim] of T; dx may
// be dout, out may be x; bias: [dim] or null. Reads 2n*sizeof(T) bytes and dim*sizeof(T) of bias,
// writes n*sizeof(T), and n*sizeof(T) more with out.
template <bool exact, class T>
__global__ void bias_gelu_backward_kernel(Layout layout, const T* dout, const T* x, const T* bias,
                                          T* dx, T* out, std::int64_t dim) {
  constexpr int width = width_for<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    Compute<T> inputs[width], gradients[width];
    load_biased(place, x, bias, dim, inputs);
    place.load(dout, gradients);
#pragma unroll
    for (int k = 0; k < width; ++k) gradients[k] *= gelu_derivative<exact, T>(inputs[k]);
    place.store(dx, gradients);
    if (out == nullptr) return;
#pragma unroll
    for (int k = 0; k < width; ++k) inputs[k] = gelu<exact, T>(inputs[k]);
    place.store(out, inputs);
  });
}

// The offset of element i of a contiguous [rows, dim] array among rows of `stride` elements.
struct RowOffset {
  std::int64_t dim, stride;
  __device__ __forceinline__ std::int64_t operator()(std::int64_t i) const {
    const Quotient row = divide(i, dim);
    return row.quotient * stride + row.remainder;
  }
};

// out = silu(gate) * up. gate, up: [rows, dim] of T in rows of their own strides; out: [rows, dim]
// contiguous. Reads 2n*sizeof(T) bytes, writes n*sizeof(T), n = rows*dim.
template <class T>
__global__ void swiglu_kernel(Layout layout, const T* gate, const T* up, T* out,
                              RowOffset gate_offset, RowOffset up_offset) {
  constexpr int width = width_for<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    Compute<T> gates[width], ups[width];
    place.gather(gate, gate_offset, gates);
    place.gather(up, up_offset, ups);
#pragma unroll
    for (int k = 0; k < width; ++k) gates[k] = silu<T>(gates[k]) * ups[k];
    place.store(out, gates);
  });
}

template <class T>
struct SwiGluPointers {
  const T* dout;
  const T* gate;
  const T* up;
  T* dgate;
  T* dup;
  T* out;
};

// dgate = dout * up * silu'(gate), dup = dout * silu(gate); out, unless null, gets silu(gate) * up
// by the forward's own expression. dout, out: [rows, dim] contiguous; gate and dgate, up and dup in
// rows of their strides. Reads 3n*sizeof(T) bytes, writes 2n*sizeof(T), with out n*sizeof(T) more.
template <class T>
__global__ void swiglu_backward_kernel(Layout layout, SwiGluPointers<T> pointers,
                                       RowOffset gate_offset, RowOffset up_offset) {
  constexpr int width = width_for<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    Compute<T> gates[width], ups[width], douts[width], results[width];
    place.gather(pointers.gate, gate_offset, gates);
    place.gather(pointers.up, up_offset, ups);
    place.load(pointers.dout, douts);
#pragma unroll
    for (int k = 0; k < width; ++k) results[k] = douts[k] * ups[k] * silu_derivative<T>(gates[k]);
    place.scatter(pointers.dgate, gate_offset, results);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      gates[k] = silu<T>(gates[k]);
      results[k] = douts[k] * gates[k];
    }
    place.scatter(pointers.dup, up_offset, results);
    if (pointers.out == nullptr) return;
#pragma unroll
    for (int k = 0; k < width; ++k) gates[k] *= ups[k];
    place.store(pointers.out, gates);
  });
}

// Uses vectors if every row of every array begins at a vector's boundary.
template <int width, class Arguments>
Layout layout_of_rows(const Arguments& a, std::initializer_list<MappedArray> arrays) {
  const Layout layout = layout_of<width>(a.rows * a.dim, arrays);
  const bool fits = layout.skew == 0 && a.dim % width == 0 && a.gate_stride % width == 0 &&
                    a.up_stride % width == 0;
  return fits ? layout : Layout{layout.n};
}

// Bytes from the first to the last element of strided rows.
template <class T>
std::int64_t bytes_of_rows(std::int64_t rows, std::int64_t dim, std::int64_t stride) {
  if (rows == 0 || dim == 0) return 0;
  return ((rows - 1) * stride + dim) * static_cast<std::int64_t>(sizeof(T));
}

}  // namespace

void bias_gelu(const BiasGelu& a, Queue queue) {
  for_floating(a.dtype, "bias_gelu", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = width_for<T>;
    const std::int64_t n = a.rows * a.dim;
    const Layout layout = layout_of<width>(n, {{a.x, sizeof(T)}, {a.out, sizeof(T)}});
    launch(context_of(queue),
           {"bias_gelu",
            {a.rows, a.dim},
            {reads(a.x, n * sizeof(T)), reads(a.bias, a.dim * sizeof(T)),
             writes(a.out, n * sizeof(T))}},
           configuration_of<width>(layout),
           a.exact ? bias_gelu_kernel<true, T> : bias_gelu_kernel<false, T>, layout,
           static_cast<const T*>(a.x), static_cast<const T*>(a.bias), static_cast<T*>(a.out),
           a.dim);
  });
}

void bias_gelu_backward(const BiasGeluBackward& a, Queue queue) {
  for_floating(a.dtype, "bias_gelu_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = width_for<T>;
    const std::int64_t n = a.rows * a.dim;
    const auto bytes = n * sizeof(T);
    const Layout layout = layout_of<width>(
        n, {{a.dout, sizeof(T)}, {a.x, sizeof(T)}, {a.dx, sizeof(T)}, {a.out, sizeof(T)}});
    launch(context_of(queue),
           {"bias_gelu_backward",
            {a.rows, a.dim},
            {reads(a.dout, bytes), reads(a.x, bytes), reads(a.bias, a.dim * sizeof(T)),
             writes(a.dx, bytes), writes(a.out, bytes)}},
           configuration_of<width>(layout),
           a.exact ? bias_gelu_backward_kernel<true, T> : bias_gelu_backward_kernel<false, T>,
           layout, static_cast<const T*>(a.dout), static_cast<const T*>(a.x),
           static_cast<const T*>(a.bias), static_cast<T*>(a.dx), static_cast<T*>(a.out), a.dim);
  });
}

void swiglu(const SwiGlu& a, Queue queue) {
  for_floating(a.dtype, "swiglu", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = width_for<T>;
    const Layout layout =
        layout_of_rows<width>(a, {{a.gate, sizeof(T)}, {a.up, sizeof(T)}, {a.out, sizeof(T)}});
    launch(context_of(queue),
           {"swiglu",
            {a.rows, a.dim},
            {reads(a.gate, bytes_of_rows<T>(a.rows, a.dim, a.gate_stride)),
             reads(a.up, bytes_of_rows<T>(a.rows, a.dim, a.up_stride)),
             writes(a.out, layout.n * sizeof(T))}},
           configuration_of<width>(layout), swiglu_kernel<T>, layout, static_cast<const T*>(a.gate),
           static_cast<const T*>(a.up), static_cast<T*>(a.out), RowOffset{a.dim, a.gate_stride},
           RowOffset{a.dim, a.up_stride});
  });
}

void swiglu_backward(const SwiGluBackward& a, Queue queue) {
  for_floating(a.dtype, "swiglu_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = width_for<T>;
    const Layout layout = layout_of_rows<width>(a, {{a.dout, sizeof(T)},
                                                    {a.gate, sizeof(T)},
                                                    {a.up, sizeof(T)},
                                                    {a.dgate, sizeof(T)},
                                                    {a.dup, sizeof(T)},
                                                    {a.out, sizeof(T)}});
    const auto bytes = layout.n * sizeof(T);
    const std::int64_t gate_bytes = bytes_of_rows<T>(a.rows, a.dim, a.gate_stride);
    const std::int64_t up_bytes = bytes_of_rows<T>(a.rows, a.dim, a.up_stride);
    const SwiGluPointers<T> pointers = {
        static_cast<const T*>(a.dout), static_cast<const T*>(a.gate), static_cast<const T*>(a.up),
        static_cast<T*>(a.dgate),      static_cast<T*>(a.dup),        static_cast<T*>(a.out)};
    launch(context_of(queue),
           {"swiglu_backward",
            {a.rows, a.dim},
            {reads(a.dout, bytes), reads(a.gate, gate_bytes), reads(a.up, up_bytes),
             writes(a.dgate, gate_bytes), writes(a.dup, up_bytes), writes(a.out, bytes)}},
           configuration_of<width>(layout), swiglu_backward_kernel<T>, layout, pointers,
           RowOffset{a.dim, a.gate_stride}, RowOffset{a.dim, a.up_stride});
  });
}

}  // namespace tessera::kernels::cuda
