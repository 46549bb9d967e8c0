// The table of backends, and lookup of devices by name.
#include "engine/device/backend.h"

#include <fmt/format.h>
#include <charconv>

#include "base/error.h"
#include "engine/cpu/backend.h"
#include "engine/device/cuda_backend.h"
#include "engine/planned/backend.h"

namespace tessera {
namespace {

// The number after "cuda:", or -1.
int index_of(std::string_view digits) {
  int index = -1;
  const char* end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, index);
  return error == std::errc{} && last == end ? index : -1;
}

}  // namespace

const Backend& backend_of(DeviceType type) {
  switch (type) {
    case DeviceType::cpu:
      return cpu_backend();
    case DeviceType::cuda:
      return cuda_backend();
    case DeviceType::planned:
      return planned_backend();
    case DeviceType::meta:
      break;
  }
  misuse("`meta` has no memory, queues or kernels; materialise the tensors on another device");
}

void require_device(Device device) {
  const Backend& backend = backend_of(device.type);
  const int count = backend.device_count();
  TESSERA_CHECK(count > 0, ErrorCode::configuration,
                "device {} cannot be used: {}; use device `cpu`, or `auto`", device.to_string(),
                backend.unavailable_reason());
  TESSERA_CHECK(device.index >= 0 && device.index < count, ErrorCode::configuration,
                "device {} cannot be used: there {} of its kind, numbered from 0",
                device.to_string(), count == 1 ? "is 1" : fmt::format("are {}", count));
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return Device::cpu();
  if (text == "auto") return cuda_backend().device_count() > 0 ? Device::cuda() : Device::cpu();
  if (text == "cuda") return Device::cuda();
  constexpr std::string_view prefix = "cuda:";
  if (text.starts_with(prefix)) {
    const int index = index_of(text.substr(prefix.size()));
    if (index >= 0) return Device::cuda(index);
  }
  fail(ErrorCode::configuration, "device \"{}\" is unknown; there are cpu, cuda, cuda:N and auto",
       text);
}

}  // namespace tessera
