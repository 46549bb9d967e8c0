// A build without CUDA: no device, and the reason.
#include "base/error.h"
#include "engine/device/cuda_backend.h"

namespace tessera {
namespace {

class AbsentBackend final : public Backend {
 public:
  [[nodiscard]] int device_count() const override { return 0; }
  [[nodiscard]] std::string unavailable_reason() const override { return "this build has no CUDA"; }
  [[nodiscard]] bool installed() const override { return false; }
  [[nodiscard]] std::vector<DeviceDescription> describe() const override { return {}; }
  [[nodiscard]] std::string matrix_products() const override { return unavailable_reason(); }
  [[nodiscard]] std::string attention() const override { return unavailable_reason(); }

  [[nodiscard]] const kernels::KernelTable& kernels() const override { refuse(); }
  [[nodiscard]] std::unique_ptr<DeviceQueue> make_queue(Device, std::string_view,
                                                        QueuePriority) const override {
    refuse();
  }
  [[nodiscard]] std::shared_ptr<MemorySource> memory_source(Device) const override { refuse(); }
  [[nodiscard]] std::shared_ptr<std::byte> allocate_pinned(std::size_t) const override { refuse(); }
  void bind_thread(Device) const override { refuse(); }

 private:
  [[noreturn]] void refuse() const {
    fail(ErrorCode::configuration,
         "no GPU can be used: {}; build with -DTESSERA_CUDA=ON, or use device `cpu`",
         unavailable_reason());
  }
};

}  // namespace

const Backend& cuda_backend() {
  static const AbsentBackend backend;
  return backend;
}

}  // namespace tessera
