// The GPU's kernel table.
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels {

const KernelTable& cuda_kernels() {
  static constexpr KernelTable table{
#define TESSERA_KERNEL_ENTRY(name, Arguments) .name = &cuda::name,
      TESSERA_KERNELS(TESSERA_KERNEL_ENTRY)
#undef TESSERA_KERNEL_ENTRY
  };
  return table;
}

}  // namespace tessera::kernels
