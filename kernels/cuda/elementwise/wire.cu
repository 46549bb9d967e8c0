// Encodes, decodes and rounds numbers for formats of fewer bits: a warp for each block of 32, a
// lane for each of its elements. Numbers have the CPU kernel's bits.
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int wire_threads = 256;
constexpr int wire_warps = wire_threads / static_cast<int>(wire_block);
static_assert(wire_block == warp_size);

// All threads of a kernel take the same case.
__device__ __forceinline__ float load_number(const void* in, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::bfloat16:
      return to_compute(static_cast<const __nv_bfloat16*>(in)[i]);
    case DType::float16:
      return to_compute(static_cast<const __half*>(in)[i]);
    default:
      return static_cast<const float*>(in)[i];
  }
}
__device__ __forceinline__ void store_number(void* out, DType dtype, std::int64_t i, float value) {
  switch (dtype) {
    case DType::bfloat16:
      static_cast<__nv_bfloat16*>(out)[i] = from_compute<__nv_bfloat16>(value);
      return;
    case DType::float16:
      static_cast<__half*>(out)[i] = from_compute<__half>(value);
      return;
    default:
      static_cast<float*>(out)[i] = value;
  }
}

// in, out: [n] of their dtypes; payload: [n] bytes; scales: [blocks]. Reads in, or payload and
// scales; writes out, or payload and scales.
template <WireFormat format>
__global__ void __launch_bounds__(wire_threads) wire_kernel(Wire a, std::int64_t blocks) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * wire_warps;
  auto* const codes = static_cast<std::uint8_t*>(a.payload);
  auto* const scales = static_cast<std::uint8_t*>(a.scales);
  for (std::int64_t block =
           static_cast<std::int64_t>(blockIdx.x) * wire_warps + threadIdx.x / warp_size;
       block < blocks; block += stride) {
    const std::int64_t i = block * wire_block + lane;
    const bool inside = i < a.n;
    std::uint8_t code = 0, scale = 0;
    if (a.step == WireStep::decode) {
      if (inside) code = codes[i];
      scale = scales[block];
    } else {
      const float value = inside ? load_number(a.in, a.in_dtype, i) : 0.0f;
      scale = scale_of_block<format>(warp_reduce<Maximum>(magnitude_bits(value)));
      if (scale != scale_of_nan) code = encode_element<format>(value * to_block(scale));
    }
    if (a.step != WireStep::encode) {
      const float value = decode_element<format>(code) * from_block(scale);
      if (inside) store_number(a.out, a.out_dtype, i, value);
      continue;
    }
    if (inside) codes[i] = code;
    if (lane == 0) scales[block] = scale;
  }
}

// The same for bf16, without scales, one element per thread.
__global__ void __launch_bounds__(wire_threads) wire_bfloat16_kernel(Wire a) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * wire_threads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * wire_threads + threadIdx.x; i < a.n;
       i += stride) {
    const bool decodes = a.step == WireStep::decode;
    const float value =
        load_number(decodes ? a.payload : a.in, decodes ? DType::bfloat16 : a.in_dtype, i);
    if (a.step == WireStep::encode) {
      store_number(a.payload, DType::bfloat16, i, value);
    } else {
      store_number(a.out, a.out_dtype, i, to_compute(from_compute<__nv_bfloat16>(value)));
    }
  }
}

template <class... Parameters, class... Arguments>
void run_wire(const Wire& a, Context& context, std::int64_t items, std::int64_t a_block,
              void (*kernel)(Parameters...), Arguments... arguments) {
  const bool decodes = a.step == WireStep::decode, encodes = a.step == WireStep::encode;
  const bool travels = a.step != WireStep::round;
  launch(context,
         {"wire",
          {a.n},
          {reads(decodes ? nullptr : a.in, a.n * size_of(a.in_dtype)),
           writes(encodes ? nullptr : a.out, a.n * size_of(a.out_dtype)),
           Access{travels ? a.payload : nullptr, wire_payload_bytes(a.format, a.n), encodes},
           Access{travels ? a.scales : nullptr, wire_scale_bytes(a.format, a.n), encodes}}},
         {dim3(blocks_for(items, a_block)), dim3(wire_threads)}, kernel, a, arguments...);
}

template <WireFormat format>
void run_blocks(const Wire& a, Context& context) {
  const std::int64_t blocks = (a.n + wire_block - 1) / wire_block;
  run_wire(a, context, blocks, wire_warps, wire_kernel<format>, blocks);
}

}  // namespace

void wire(const Wire& a, Queue queue) {
  for (const DType dtype : {a.in_dtype, a.out_dtype}) {
    if (!is_floating(dtype) || dtype == DType::float64) unsupported("wire", dtype);
  }
  Context& context = context_of(queue);
  switch (a.format) {
    case WireFormat::bf16:
      return run_wire(a, context, a.n, wire_threads, wire_bfloat16_kernel);
    case WireFormat::int8:
      return run_blocks<WireFormat::int8>(a, context);
    case WireFormat::fp8_e4m3:
      return run_blocks<WireFormat::fp8_e4m3>(a, context);
    case WireFormat::fp8_e5m2:
      return run_blocks<WireFormat::fp8_e5m2>(a, context);
    case WireFormat::same:
      break;
  }
  misuse_of("wire", "no format", static_cast<std::int64_t>(a.format));
}

}  // namespace tessera::kernels::cuda
