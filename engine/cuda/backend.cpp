// The GPU's backend.
#include <map>
#include <mutex>

#include "base/error.h"
#include "engine/cuda/arena.h"
#include "engine/cuda/device.h"
#include "engine/cuda/pinned.h"
#include "engine/cuda/queue.h"
#include "engine/device/cuda_backend.h"
#include "kernels/cuda/cudnn/attention_way.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/matmul/matmul_way.h"

namespace tessera {
namespace {

class CudaBackend final : public Backend {
 public:
  [[nodiscard]] int device_count() const override { return cuda::availability().count; }
  [[nodiscard]] std::string unavailable_reason() const override {
    return cuda::availability().reason;
  }
  [[nodiscard]] bool installed() const override { return cuda::availability().driver; }

  [[nodiscard]] std::vector<DeviceDescription> describe() const override {
    std::vector<DeviceDescription> all;
    for (int index = 0; index < device_count(); ++index) {
      const cudaDeviceProp& properties = cuda::properties(index);
      DeviceDescription device;
      device.device = Device::cuda(index);
      device.name = properties.name;
      device.compute_capability = properties.major * 10 + properties.minor;
      device.multiprocessors = properties.multiProcessorCount;
      device.memory_bytes = properties.totalGlobalMem;
      all.push_back(device);
    }
    return all;
  }

  [[nodiscard]] std::string matrix_products() const override {
    return kernels::cuda::describe_products(kernels::cuda::matmul_way(),
                                            kernels::cuda::cublas_lt_library());
  }
  [[nodiscard]] std::string attention() const override {
    return kernels::cuda::describe_attention(kernels::cuda::attention_way(),
                                             kernels::cuda::cudnn_library());
  }
  [[nodiscard]] const kernels::KernelTable& kernels() const override {
    return kernels::cuda_kernels();
  }
  [[nodiscard]] std::unique_ptr<DeviceQueue> make_queue(Device device, std::string_view name,
                                                        QueuePriority priority) const override {
    return std::make_unique<cuda::Queue>(device.index, std::string(name), priority, arena(device));
  }
  [[nodiscard]] std::shared_ptr<MemorySource> memory_source(Device device) const override {
    return arena(device);
  }
  [[nodiscard]] std::shared_ptr<std::byte> allocate_pinned(std::size_t bytes) const override {
    require_device(Device::cuda());
    return cuda::pinned_pool()->allocate(bytes);
  }
  void bind_thread(Device device) const override {
    require_device(device);
    cuda::bind_thread(device.index);
  }

 private:
  [[nodiscard]] std::shared_ptr<cuda::Arena> arena(Device device) const {
    require_device(device);
    const std::lock_guard lock(mutex_);
    std::shared_ptr<cuda::Arena>& arena = arenas_[device.index];
    if (!arena) arena = std::make_shared<cuda::Arena>(device.index);
    return arena;
  }

  mutable std::mutex mutex_;
  mutable std::map<int, std::shared_ptr<cuda::Arena>> arenas_;
};

}  // namespace

const Backend& cuda_backend() {
  static const CudaBackend backend;
  return backend;
}

}  // namespace tessera
