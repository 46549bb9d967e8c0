// Maps a device to its kernel table and queue.
#include "engine/device/launch.h"

#include "engine/device/backend.h"

namespace tessera {
namespace {

thread_local const kernels::KernelTable* thread_cpu_kernels = nullptr;

}  // namespace

KernelTableGuard::KernelTableGuard(const kernels::KernelTable& table)
    : previous_(thread_cpu_kernels) {
  thread_cpu_kernels = &table;
}

KernelTableGuard::~KernelTableGuard() {
  thread_cpu_kernels = previous_;
}

const kernels::KernelTable& kernels_of(Device device) {
  if (device.type == DeviceType::cpu) {
    return thread_cpu_kernels == nullptr ? kernels::cpu_kernels() : *thread_cpu_kernels;
  }
  return backend_of(device.type).kernels();
}

kernels::Queue kernel_queue(Device device) {
  if (device.type == DeviceType::cpu) return {};  // there is only one queue
  return current_queue(device).native();
}

}  // namespace tessera
