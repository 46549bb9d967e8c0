// The gradient of every op, on the GPU, with the CPU's cases.
#include <cstdlib>

#include "engine/tensor_op_gradients_test.h"

namespace tessera {

Device gradient_cases::checked_device() {
  setenv("TESSERA_CUDA_MEMORY", "64M", 0);
  return Device::cuda();
}

// The formulas are the CPU's, whose every element is checked, and each kernel is compared with a
// reference. This test only checks that the tape starts the right kernels. A few elements suffice
// for that, and an emulated GPU is slow.
std::size_t gradient_cases::checked_elements() {
  return 3;
}

}  // namespace tessera
