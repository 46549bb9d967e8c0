// The gradient of every op, on the GPU: the cases are the CPU's.
#include <cstdlib>

#include "engine/gradient_check_test.h"

namespace tessera {

Device gradient_cases::checked_device() {
  setenv("TESSERA_CUDA_MEMORY", "64M", 0);
  return Device::cuda();
}

// The formulas are the CPU's, whose every element is checked, and each kernel is compared with a
// reference. What is left is that the tape starts the right ones: a few elements tell, and an
// emulated GPU takes its time over each.
std::size_t gradient_cases::checked_elements() {
  return 3;
}

}  // namespace tessera
