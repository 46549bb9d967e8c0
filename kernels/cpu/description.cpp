// Asks oneDNN and Highway.
#include "kernels/cpu/description.h"

#include <fmt/format.h>

#include "kernels/cpu/matmul/matmul_onednn.h"
#include "kernels/cpu/matmul/onednn_versions.h"
#include "kernels/cpu/simd/simd_targets.h"
// After simd_targets.h.
#include "hwy/highway.h"

namespace tessera::kernels::cpu {

Description describe() {
  Description description;
  const dnnl_version_t* version = dnnl_version();
  description.onednn_version =
      fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
  const dnnl_cpu_isa_t instructions = dnnl_get_effective_cpu_isa();
  const char* const name = onednn::name_of(instructions);
  description.onednn_isa =
      name != nullptr ? name : fmt::format("oneDNN isa {:#x}", static_cast<unsigned>(instructions));
  description.bf16_products = has_bfloat16_products();
  description.highway_version = fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH);
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  description.highway_target = hwy::TargetName(targets & -targets);  // the lowest bit is the best
  return description;
}

}  // namespace tessera::kernels::cpu
