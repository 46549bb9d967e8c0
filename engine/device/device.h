// Devices: the place of a tensor's memory, and the kernels that compute on it.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

enum class DeviceType : std::uint8_t { cpu, cuda, meta, planned };

// Two kinds of device compute nothing. `meta` tensors have a shape and dtype but no storage:
// deferred initialisation runs the real code on them, and reading one is an error. `planned` memory
// has addresses that must not be dereferenced. Pools count it like a device's memory: the real step
// runs there to find out what it needs. Values read from it are zero.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  static constexpr Device cpu() { return {DeviceType::cpu, 0}; }
  static constexpr Device cuda(int index = 0) { return {DeviceType::cuda, index}; }
  static constexpr Device meta() { return {DeviceType::meta, 0}; }
  // A planned device stands for type `cpu` or `cuda`: blocks are rounded as they would be there.
  static constexpr Device planned(DeviceType type = DeviceType::cpu) {
    return {DeviceType::planned, static_cast<int>(type)};
  }
  [[nodiscard]] constexpr bool is_meta() const { return type == DeviceType::meta; }
  [[nodiscard]] constexpr bool is_planned() const { return type == DeviceType::planned; }
  // The device type whose block sizes apply: for a planned device the type that it stands for.
  [[nodiscard]] constexpr DeviceType stands_for() const {
    return is_planned() ? static_cast<DeviceType>(index) : type;
  }
  // The device of its host memory: the CPU, or planned for a planned device.
  [[nodiscard]] constexpr Device host() const { return is_planned() ? planned() : cpu(); }
  [[nodiscard]] std::string to_string() const;
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

// The device of new tensors of the calling thread by default. It is thread state because ranks can
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
