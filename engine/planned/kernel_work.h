// What a kernel has to do: its operations and the bytes that it must move, from its arguments
// alone. Plans of time count these, and calibration times the same kernels by the same counts.
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
};
inline constexpr int kernel_count = static_cast<int>(KernelId::sgd_step) + 1;
std::string_view name_of(KernelId kernel);
std::optional<KernelId> kernel_named(std::string_view name);

// What bounds a kernel when it is done well.
enum class KernelNature : std::uint8_t { product, attention, memory };
KernelNature nature_of(KernelId kernel);

// Attention counts the scores that are seen, its backward five products a score where the forward
// has two. `bytes` are those of each operand once.
struct KernelWork {
  KernelId kernel = KernelId::fill;
  DType dtype = DType::float32;  // of the operands
  double operations = 0;         // multiplications and additions, of products and attention
  double bytes = 0;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;  // of products; of attention queries, keys, head_dim
};

#define TESSERA_KERNEL_WORK(name, Arguments) KernelWork work_of(const kernels::Arguments& call);
TESSERA_KERNELS(TESSERA_KERNEL_WORK)
#undef TESSERA_KERNEL_WORK

}  // namespace tessera
