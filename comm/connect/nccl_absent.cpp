// A build without CUDA does not have NCCL either.
#include "base/error.h"
#include "comm/nccl.h"

namespace tessera::comm {

NcclStatus nccl_status() {
  return {.in_build = false, .available = false, .text = "this build has no CUDA"};
}

std::shared_ptr<Communicator> connect_nccl(const World& /*world*/, const ConnectOptions& options) {
  fail(
      ErrorCode::configuration,
      "ranks on {} need NCCL, and this build has no CUDA: build with -DTESSERA_CUDA=ON, or use the "
      "CPU",
      options.device.to_string());
}

}  // namespace tessera::comm
