// The work of a kernel: its operations and the bytes that it must move, computed from its arguments
// alone. Plans of time use these counts, and calibration measures the same kernels with them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/registry.h"

namespace tessera {

enum class KernelId : std::uint8_t {
#define TESSERA_KERNEL_ID(name, Arguments) name,
  TESSERA_KERNELS(TESSERA_KERNEL_ID)
#undef TESSERA_KERNEL_ID
      own_op,  // of a program (engine/interop/own_op.h)
};
inline constexpr int kernel_count = static_cast<int>(KernelId::own_op) + 1;
std::string_view name_of(KernelId kernel);
std::optional<KernelId> kernel_named(std::string_view name);

// The resource that limits a well-implemented kernel.
// own: whichever of its operations and its bytes takes longer.
enum class KernelNature : std::uint8_t { product, attention, memory, own };
KernelNature nature_of(KernelId kernel);

// Attention counts the scores that are not masked; its backward has five products per score, and
// two more for the gradient of a bias, the forward two. `bytes` counts each operand once.
struct KernelWork {
  KernelId kernel = KernelId::fill;
  DType dtype = DType::float32;  // of the operands
  double operations = 0;         // multiplications and additions, for products and attention
  double bytes = 0;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;  // of products; attention: queries, keys, head_dim
  // The operations that repeat those of the forward, or of this call.
  double recomputed = 0;
};

#define TESSERA_KERNEL_WORK(name, Arguments) KernelWork work_of(const kernels::Arguments& call);
TESSERA_KERNELS(TESSERA_KERNEL_WORK)
#undef TESSERA_KERNEL_WORK

}  // namespace tessera
