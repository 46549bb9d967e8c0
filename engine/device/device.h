// Devices: where a tensor's memory lives and which row of kernels computes on it.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

enum class DeviceType : std::uint8_t { cpu, cuda, meta, planned };

// Two kinds of device compute nothing. `meta` tensors have shape and dtype and no storage: deferred
// initialisation runs the real code on them, and reading one is an error. `planned` memory has
// addresses that nobody may follow and is counted by the pools as a device's would be: the real
// step runs there to find out what it needs. Values read from it are zero.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  static constexpr Device cpu() { return {DeviceType::cpu, 0}; }
  static constexpr Device cuda(int index = 0) { return {DeviceType::cuda, index}; }
  static constexpr Device meta() { return {DeviceType::meta, 0}; }
  // Stands for a device of type `cpu` or `cuda`: blocks are rounded as they would be there.
  static constexpr Device planned(DeviceType type = DeviceType::cpu) {
    return {DeviceType::planned, static_cast<int>(type)};
  }
  [[nodiscard]] constexpr bool is_meta() const { return type == DeviceType::meta; }
  [[nodiscard]] constexpr bool is_planned() const { return type == DeviceType::planned; }
  // Whose sizes count: of a planned device the type that it stands for.
  [[nodiscard]] constexpr DeviceType stands_for() const {
    return is_planned() ? static_cast<DeviceType>(index) : type;
  }
  // Where the host's memory is that goes with it: the CPU, planned for a planned device.
  [[nodiscard]] constexpr Device host() const { return is_planned() ? planned() : cpu(); }
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
