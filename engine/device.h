// Devices: where a tensor's memory lives and which row of kernels computes on it.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

enum class DeviceType : std::uint8_t { cpu, cuda, meta };

// `meta` tensors have shape and dtype and no storage: deferred initialisation and planning run the
// real code on them.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  static constexpr Device cpu() { return {DeviceType::cpu, 0}; }
  static constexpr Device cuda(int index = 0) { return {DeviceType::cuda, index}; }
  static constexpr Device meta() { return {DeviceType::meta, 0}; }
  [[nodiscard]] constexpr bool is_meta() const { return type == DeviceType::meta; }
  [[nodiscard]] std::string to_string() const;
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

// Where new tensors of the calling thread go unless told otherwise. Thread state, because ranks can
// be threads.
Device default_device();
void set_default_device(Device device);

class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Device previous_;
};

}  // namespace tessera
