// The windows and queues between a GPU and its host.
#include "engine/storage/host_link.h"

#include <algorithm>

#include "engine/device/backend.h"

namespace tessera {

HostLink::HostLink(Device device, const OnHost& on_host, const Sizes& sizes)
    : device_(device), on_host_(on_host) {
  if (on_host.parameters != on_host.optimizer)
    parameters_ = make_window(MemoryKind::parameters, sizes, sizes.largest_parameters);
  if (on_host.gradients != on_host.optimizer)
    gradients_ = make_window(MemoryKind::gradients, sizes, sizes.largest_gradients);
  up_ = backend_of(device.type).make_queue(device, "to the device", QueuePriority::normal);
  down_ = backend_of(device.type).make_queue(device, "to the host", QueuePriority::normal);
}

std::size_t HostLink::bytes_of_piece(std::size_t piece_bytes, std::size_t largest) {
  constexpr std::size_t unit = 256;
  return std::min(piece_bytes, (largest + unit - 1) / unit * unit);
}

std::unique_ptr<HostLink::Window> HostLink::make_window(MemoryKind kind, const Sizes& sizes,
                                                        std::size_t largest) const {
  if (largest == 0) return nullptr;  // nothing to train
  const MemoryScope scope(kind);
  const std::size_t bytes = window_bytes(sizes.piece_bytes, largest);
  return std::make_unique<Window>(
      on_host_.optimizer ? Storage::pinned(bytes, device_) : Storage::allocate(bytes, device_),
      bytes_of_piece(sizes.piece_bytes, largest));
}

std::shared_ptr<Storage> HostLink::make_state(std::size_t bytes) const {
  if (on_host_.optimizer) return Storage::pinned(bytes, device_);
  std::shared_ptr<Storage> storage = Storage::allocate(bytes, device_);
  current_queue(device_).zero(storage->data(), bytes);
  return storage;
}

}  // namespace tessera
