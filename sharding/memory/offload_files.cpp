// Creates the files and the transfers to the host.
#include "sharding/memory/offload_files.h"

#include <fmt/format.h>

#include "engine/device/memory.h"
#include "engine/device/memory_kind.h"

namespace tessera {

OffloadFiles::OffloadFiles(const OffloadOptions& options, const FileNeeds& needs, int rank,
                           Device rank_device)
    : device(rank_device), needs_(needs), piece_bytes_(options.piece_bytes) {
  if (options.uses_files()) create_files(options, rank);
  if (options.uses_host()) create_transfers(options);
}

void OffloadFiles::create_files(const OffloadOptions& options, int rank) {
  const StateFolder folder{options.folder, fmt::format("rank {}", rank), device,
                           options.piece_bytes, options.direct};
  if (options.parameters == Placement::file && needs_.masters > 0) {
    masters = std::make_shared<StateFile>(folder, "the master parameters", MemoryKind::parameters,
                                          needs_.masters);
    masters->make_window(needs_.largest_master);
    gathers = std::make_unique<FileWindow>(*masters, needs_.largest_master);
  }
  if (options.gradients == Placement::file && needs_.gradients > 0) {
    gradients = std::make_shared<StateFile>(folder, "the gradients", MemoryKind::gradients,
                                            needs_.gradients);
    gradients->make_window(needs_.largest_gradient);
    reduced = AlignedMemory(needs_.largest_gradient, MemoryKind::gradients, device);
  }
  if (options.optimizer == Placement::file) moments = std::make_shared<StateFolder>(folder);
}

void OffloadFiles::create_transfers(const OffloadOptions& options) {
  const OnHost on_host{options.parameters == Placement::host, options.gradients == Placement::host,
                       options.optimizer == Placement::host};
  host_link = std::make_shared<HostLink>(
      device, on_host,
      HostLink::Sizes{piece_bytes_, needs_.largest_trainable, needs_.largest_gradient});
  if (on_host.parameters && needs_.largest_master > 0) {
    uploads = std::make_unique<ParameterUploads>(device, piece_bytes_, needs_.largest_master,
                                                 !on_host.optimizer);
  }
  if (on_host.gradients && needs_.largest_gradient > 0)
    downloads = std::make_unique<GradientDownloads>(device, needs_.largest_gradient);
}

void OffloadFiles::finish() noexcept {
  uploads.reset();
  downloads.reset();
}

std::size_t OffloadFiles::held_bytes(MemoryKind kind) const {
  if (kind == MemoryKind::parameters) {
    const std::size_t windows =
        masters ? 2 * FileWindow::bytes(piece_bytes_, needs_.largest_master) : 0;
    return windows + (uploads ? ParameterUploads::bytes(piece_bytes_, needs_.largest_master) : 0) +
           link_window_bytes(host_link ? host_link->parameters() : nullptr);
  }
  if (kind != MemoryKind::gradients) return 0;
  const std::size_t windows = gradients ? FileWindow::bytes(piece_bytes_, needs_.largest_gradient) +
                                              AlignedMemory::bytes(needs_.largest_gradient)
                                        : 0;
  return windows + (downloads ? GradientDownloads::buffers * needs_.largest_gradient : 0) +
         link_window_bytes(host_link ? host_link->gradients() : nullptr);
}

// A window on the host takes no memory of the device.
std::size_t OffloadFiles::link_window_bytes(const HostLink::Window* window) const {
  if (window == nullptr || host_link->updates_on() != device) return 0;
  return HostLink::pieces * window->piece_bytes();
}

}  // namespace tessera
