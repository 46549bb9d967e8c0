// Asks oneDNN and Highway.
#include "kernels/cpu/description.h"

#include <fmt/format.h>
#include <hwy/highway.h>

#include <oneapi/dnnl/dnnl.hpp>

namespace tessera::kernels::cpu {
namespace {

std::string isa_name(dnnl::cpu_isa isa) {
  switch (isa) {
    case dnnl::cpu_isa::all:
      return "all";
    case dnnl::cpu_isa::sse41:
      return "SSE4.1";
    case dnnl::cpu_isa::avx:
      return "AVX";
    case dnnl::cpu_isa::avx2:
      return "AVX2";
    case dnnl::cpu_isa::avx2_vnni:
      return "AVX2 VNNI";
    case dnnl::cpu_isa::avx512_core:
      return "AVX-512";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "AVX-512 VNNI";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "AVX-512 BF16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "AMX";
    default:
      return fmt::format("oneDNN isa {:#x}", static_cast<unsigned>(isa));
  }
}

}  // namespace

Description describe() {
  Description description;
  const dnnl_version_t* version = dnnl_version();
  description.onednn_version =
      fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  description.onednn_isa = isa_name(isa);
  const auto bits = static_cast<unsigned>(isa);
  const auto bf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  description.bf16_products = isa != dnnl::cpu_isa::all && (bits & bf16) == bf16;
  description.highway_version = fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH);
  const std::int64_t targets = hwy::SupportedTargets();
  description.highway_target = hwy::TargetName(targets & -targets);  // the lowest bit is the best
  return description;
}

}  // namespace tessera::kernels::cpu
