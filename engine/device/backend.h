// Backends: the implementation of a type of device. The CPU's always exists, the GPU's only in a
// build with CUDA. All code above uses this interface and names no vendor's type.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/memory.h"
#include "engine/device/queue.h"
#include "kernels/registry.h"

namespace tessera {

struct DeviceDescription {
  Device device;
  std::string name;  // "NVIDIA H200"
  std::size_t memory_bytes = 0;
  int compute_capability = 0;  // 90 for 9.0; 0 on the CPU
  int multiprocessors = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // False if the build leaves out this type of device.
  [[nodiscard]] virtual bool in_build() const { return true; }
  // The number of usable devices; if 0, unavailable_reason() has the reason.
  [[nodiscard]] virtual int device_count() const = 0;
  // "this build has no CUDA", "no NVIDIA driver"; empty if there is a device.
  [[nodiscard]] virtual std::string unavailable_reason() const = 0;
  // True if the host has the driver for such devices, so that the user should know if none is
  // usable.
  [[nodiscard]] virtual bool installed() const { return true; }
  // All usable devices. Does not initialise them: makes no context and binds no thread.
  [[nodiscard]] virtual std::vector<DeviceDescription> describe() const = 0;
  // The implementation of matrix products: "oneDNN 2.6.2", "cuBLASLt 13.1.0 (its file)", or "our
  // own kernels" with the reason.
  [[nodiscard]] virtual std::string matrix_products() const = 0;
  // The implementation of attention: "cuDNN 9.19.0 (its file)", or "our own kernels", on a GPU with
  // the reason.
  [[nodiscard]] virtual std::string attention() const { return "our own kernels"; }

  [[nodiscard]] virtual const kernels::KernelTable& kernels() const = 0;
  [[nodiscard]] virtual std::unique_ptr<DeviceQueue> make_queue(Device device,
                                                                std::string_view name,
                                                                QueuePriority priority) const = 0;
  // The source of blocks for the device's memory pools. One per process and device.
  [[nodiscard]] virtual std::shared_ptr<MemorySource> memory_source(Device device) const = 0;
  // Page-locked host memory that copies of this backend's queues access directly; plain aligned
  // memory on the CPU. Throws Error(out_of_memory).
  [[nodiscard]] virtual std::shared_ptr<std::byte> allocate_pinned(std::size_t bytes) const = 0;
  // Makes the device current on the calling thread for the vendor's runtime; a no-op on the CPU.
  virtual void bind_thread(Device device) const = 0;
};

// The backend of a device type. Throws a logic_error for `meta`.
const Backend& backend_of(DeviceType type);
// Throws Error(configuration) with the reason and the way out unless the device is usable.
void require_device(Device device);
// "cpu", "cuda" (cuda:0), "cuda:1", "auto" (the first GPU if one is usable, else the CPU). Throws
// Error(configuration) for other texts.
Device parse_device(std::string_view text);

}  // namespace tessera
