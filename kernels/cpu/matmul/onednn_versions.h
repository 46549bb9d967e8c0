// The differences between the interfaces of oneDNN 2 and oneDNN 3.
#pragma once

#include <dnnl.hpp>

namespace tessera::kernels::cpu::onednn {

// Describes the computation of a matrix product: operations and attributes are given, the kernel is
// chosen. `bias` is null without a bias. If oneDNN has no kernel, dnnl::error is thrown.
inline dnnl::matmul::primitive_desc describe_matmul(const dnnl::engine& engine,
                                                    const dnnl::memory::desc& a,
                                                    const dnnl::memory::desc& b,
                                                    const dnnl::memory::desc* bias,
                                                    const dnnl::memory::desc& c,
                                                    const dnnl::primitive_attr& attributes = {}) {
#if DNNL_VERSION_MAJOR >= 3
  if (bias != nullptr) return {engine, a, b, *bias, c, attributes};
  return {engine, a, b, c, attributes};
#else
  if (bias != nullptr) return {{a, b, *bias, c}, attributes, engine};
  return {{a, b, c}, attributes, engine};
#endif
}

// Multiplies the result so far of a primitive by `factor`.
inline void append_factor(dnnl::post_ops& operations, float factor) {
#if DNNL_VERSION_MAJOR >= 3
  operations.append_eltwise(dnnl::algorithm::eltwise_linear, factor, 0.0f);
#else
  operations.append_eltwise(1.0f, dnnl::algorithm::eltwise_linear, factor, 0.0f);
#endif
}

// The name of the instruction sets that oneDNN uses, or null if it is unknown here.
inline const char* name_of(dnnl_cpu_isa_t instructions) {
  switch (instructions) {
#if DNNL_VERSION_MAJOR >= 3
    case dnnl_cpu_isa_default:
      return "all";
    case dnnl_cpu_isa_avx2_vnni_2:
      return "AVX2 VNNI with bf16 and fp16 conversion";
    case dnnl_cpu_isa_avx512_core_fp16:
      return "AVX-512 FP16";
    case dnnl_cpu_isa_avx512_core_amx_fp16:
      return "AMX FP16";
#else
    case dnnl_cpu_isa_all:
      return "all";
#endif
    case dnnl_cpu_isa_sse41:
      return "SSE4.1";
    case dnnl_cpu_isa_avx:
      return "AVX";
    case dnnl_cpu_isa_avx2:
      return "AVX2";
    case dnnl_cpu_isa_avx2_vnni:
      return "AVX2 VNNI";
    case dnnl_cpu_isa_avx512_core:
      return "AVX-512";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "AVX-512 VNNI";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "AVX-512 BF16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "AMX";
    default:
      return nullptr;
  }
}

}  // namespace tessera::kernels::cpu::onednn
