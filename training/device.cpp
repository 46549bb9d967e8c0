// From train.device to a device.
#include "training/device.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/error.h"
#include "comm/nccl.h"
#include "engine/device/backend.h"

namespace tessera::training {
namespace {

// The GPU of a rank that asks for one, even if it does not exist.
Device gpu_of(const comm::World& world, int count) {
  return Device::cuda(count > 0 ? world.local_rank % count : 0);
}

// `asked` names the key or option that asked for a GPU.
template <class Asked>
Device choose(DeviceChoice choice, const Asked& asked, const comm::World& world) {
  if (choice == DeviceChoice::cpu) return Device::cpu();
  const Backend& gpus = backend_of(DeviceType::cuda);
  const int count = gpus.device_count();
  if (choice == DeviceChoice::cuda) {
    TESSERA_CHECK(count > 0, ErrorCode::configuration, "{} is not available: {}; use cpu or auto",
                  asked(), gpus.unavailable_reason());
    return gpu_of(world, count);
  }
  const bool one_each = count > 0 && count >= world.local_size;
  const bool connected = world.size == 1 || comm::nccl_status().available;
  return one_each && connected ? gpu_of(world, count) : Device::cpu();
}

}  // namespace

Device choose_device(const Recipe& recipe, const comm::World& world) {
  const DeviceChoice choice = recipe.train.device;
  const auto asked = [&] { return where(recipe, "train.device") + ": train.device: cuda"; };
  return choose(choice, asked, world);
}

Device choose_device(const std::string& name, const comm::World& world) {
  constexpr std::pair<std::string_view, DeviceChoice> names[] = {
      {"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}};
  for (const auto& [known, choice] : names) {
    if (name == known)
      return choose(
          choice, [] { return std::string("--device cuda"); }, world);
  }
  fail(ErrorCode::usage, "--device {}: there are auto, cpu and cuda", name);
}

std::string describe_choice(const Recipe& recipe, Device device) {
  const Backend& gpus = backend_of(DeviceType::cuda);
  if (device.type == DeviceType::cuda) {
    for (const DeviceDescription& gpu : gpus.describe()) {
      if (gpu.device == device) return fmt::format("{} ({})", device.to_string(), gpu.name);
    }
    return device.to_string();
  }
  // Without a driver no user expects a GPU; `tessera env` prints the reason.
  if (recipe.train.device == DeviceChoice::automatic && gpus.installed()) {
    const std::string reason = gpus.unavailable_reason();
    return fmt::format("cpu ({})", reason.empty() ? "no GPU for every rank" : reason);
  }
  return "cpu";
}

}  // namespace tessera::training
