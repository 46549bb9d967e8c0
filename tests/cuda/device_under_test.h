// Properties of the GPU that the tests run on, beyond CUDA: whether accesses are checked, and which
// NCCL connects ranks. emulated_device.cpp defines them for the emulated GPU, real_device.cpp for a
// real one, so the tests are the same object files on both.
#pragma once

#include <string>

#include "comm/nccl/nccl_library.h"
#include "engine/device/device.h"

namespace tessera::testing {

// While it lives, it detects accesses that no wait between queues orders, and fails the test if
// there are any. Only on the emulated GPU, and not under the thread sanitizer, which detects them
// itself.
class AccessChecking {
 public:
  AccessChecking();
  ~AccessChecking();
  AccessChecking(const AccessChecking&) = delete;
  AccessChecking& operator=(const AccessChecking&) = delete;
};

// NCCL among ranks that are threads of this process.
struct NcclUnderTest {
  const cuda::NcclFunctions* functions = nullptr;
  std::string missing;  // the reason why it cannot connect so many ranks; else empty
};
NcclUnderTest nccl_under_test(int ranks);
// The device of such a rank.
Device nccl_device(int rank);

}  // namespace tessera::testing
