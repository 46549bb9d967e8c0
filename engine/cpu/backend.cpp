// The CPU as a device. It has one queue, and all work is done when a call returns.
#include "engine/cpu/backend.h"

#include <unistd.h>

#include <cstring>

#include "base/error.h"
#include "engine/cpu/heap.h"
#include "kernels/cpu/description.h"

namespace tessera {
namespace {

class CpuQueue final : public DeviceQueue {
 public:
  [[nodiscard]] Device device() const override { return Device::cpu(); }
  [[nodiscard]] kernels::Queue native() override { return {}; }

  [[nodiscard]] PointHandle record() override { return nullptr; }
  [[nodiscard]] PointHandle record_timed() override { return nullptr; }
  void wait(const PointHandle& point) override {
    if (point) point->synchronize();  // a point of a GPU's queue: here the thread is the queue
  }
  void synchronize() override {}

  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void zero(void* memory, std::size_t bytes) override {
    if (bytes > 0) std::memset(memory, 0, bytes);
  }
  void copy_from_host(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes);
  }
  void enqueue_copy_from_pinned(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes);
  }
  void enqueue_copy_to_pinned(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes);
  }
  void run_own(const OwnWork& /*work*/, const std::function<void(void* stream)>& enqueue) override {
    enqueue(nullptr);
  }
};

std::size_t pages_as_bytes(int name) {
  const long pages = ::sysconf(name);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  return pages < 0 || page_bytes < 0
             ? 0
             : static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes);
}

class CpuBackend final : public Backend {
 public:
  [[nodiscard]] int device_count() const override { return 1; }
  [[nodiscard]] std::string unavailable_reason() const override { return {}; }
  [[nodiscard]] std::vector<DeviceDescription> describe() const override {
    DeviceDescription cpu;
    cpu.device = Device::cpu();
    cpu.name = "CPU";
    cpu.memory_bytes = pages_as_bytes(_SC_PHYS_PAGES);
    return {cpu};
  }
  [[nodiscard]] std::string matrix_products() const override {
    return "oneDNN " + kernels::cpu::describe().onednn_version;
  }

  [[nodiscard]] const kernels::KernelTable& kernels() const override {
    return kernels::cpu_kernels();
  }
  [[nodiscard]] std::unique_ptr<DeviceQueue> make_queue(Device, std::string_view,
                                                        QueuePriority) const override {
    return std::make_unique<CpuQueue>();
  }
  [[nodiscard]] std::shared_ptr<MemorySource> memory_source(Device) const override { return heap_; }
  [[nodiscard]] std::shared_ptr<std::byte> allocate_pinned(std::size_t bytes) const override {
    return pinned_->allocate(bytes);
  }
  void bind_thread(Device) const override {}

 private:
  std::shared_ptr<Heap> heap_ = std::make_shared<Heap>();
  std::shared_ptr<MemoryPool> pinned_ = MemoryPool::create(heap_);
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace tessera
