// What tests of the GPU ask of the GPU they run on, beyond CUDA: whether accesses are checked, and
// which NCCL connects ranks. emulated_device.cpp answers for the emulated GPU, real_device.cpp for
// a real one, so the tests themselves are the same object files on both.
#pragma once

#include <string>

#include "comm/nccl/nccl_library.h"
#include "engine/device/device.h"

namespace tessera::testing {

// For its life, looks for accesses that no wait between queues orders, and fails the test that has
// them. On the emulated GPU only, and not under the thread sanitizer, which looks for itself.
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
  std::string missing;  // why there is none for so many ranks; else empty
};
NcclUnderTest nccl_under_test(int ranks);
// Where such a rank computes.
Device nccl_device(int rank);

}  // namespace tessera::testing
