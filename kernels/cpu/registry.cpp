// The CPU's kernel table.
#include "kernels/registry.h"

namespace tessera::kernels {

const KernelTable& cpu_kernels() {
  static constexpr KernelTable table{
#define TESSERA_KERNEL_ENTRY(name, Arguments) .name = &cpu::name,
      TESSERA_KERNELS(TESSERA_KERNEL_ENTRY)
#undef TESSERA_KERNEL_ENTRY
  };
  return table;
}

}  // namespace tessera::kernels
