// The emulated GPU: it has an access checker, and an NCCL whose ranks share it.
#include <gtest/gtest.h>

#include "cuda/device_under_test.h"
#include "emulator/nccl/nccl.h"
#include "emulator/runtime/checker.h"
#include "support/sanitizers.h"

namespace tessera::testing {

AccessChecking::AccessChecking() {
  // The checker's lock would order the thread sanitizer's threads.
  emulator::checker::set_enabled(!thread_sanitizer);
  emulator::checker::reset();
}

AccessChecking::~AccessChecking() {
  EXPECT_EQ(emulator::checker::conflicts(), 0);
  emulator::checker::reset();
}

NcclUnderTest nccl_under_test(int) {
  return {&emulator::nccl_functions(), {}};
}

Device nccl_device(int) {
  return Device::cuda();
}

}  // namespace tessera::testing
