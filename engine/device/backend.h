// Backends: what a type of device brings along. The CPU's is always there; the GPU's where the
// build has it. Everything above asks here and names no vendor's type.
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
  // False where the build leaves this type of device out.
  [[nodiscard]] virtual bool in_build() const { return true; }
  // How many devices can be used now; 0 with a reason in unavailable_reason().
  [[nodiscard]] virtual int device_count() const = 0;
  // "this build has no CUDA", "no NVIDIA driver"; empty when there is a device.
  [[nodiscard]] virtual std::string unavailable_reason() const = 0;
  // Whether the machine is set up for such devices (it has their driver), so that it is news when
  // none can be used.
  [[nodiscard]] virtual bool installed() const { return true; }
  // All devices that can be used. Takes none of them into use: no context is made, no thread bound.
  [[nodiscard]] virtual std::vector<DeviceDescription> describe() const = 0;
  // Who computes matrix products: "oneDNN 2.6.2", "cuBLASLt 13.1.0 (its file)", or "our own
  // kernels" with the reason.
  [[nodiscard]] virtual std::string matrix_products() const = 0;

  [[nodiscard]] virtual const kernels::KernelTable& kernels() const = 0;
  [[nodiscard]] virtual std::unique_ptr<DeviceQueue> make_queue(Device device,
                                                                std::string_view name) const = 0;
  // Where the device's memory pools take their blocks from. One for the process and device.
  [[nodiscard]] virtual std::shared_ptr<MemorySource> memory_source(Device device) const = 0;
  // Page-locked host memory that copies of this backend's queues reach directly; plain aligned
  // memory on the CPU. Throws Error(out_of_memory).
  [[nodiscard]] virtual std::shared_ptr<std::byte> allocate_pinned(std::size_t bytes) const = 0;
  // Makes the device the calling thread's for the vendor's runtime; a no-op on the CPU.
  virtual void bind_thread(Device device) const = 0;
};

// The backend of a device type. A logic_error for `meta`.
const Backend& backend_of(DeviceType type);
// Throws Error(configuration) with the reason and the way out unless the device can be used.
void require_device(Device device);
// "cpu", "cuda" (cuda:0), "cuda:1", "auto" (the first GPU where one can be used, else the CPU).
// Error(configuration) for other texts.
Device parse_device(std::string_view text);

}  // namespace tessera
