// The places of a rank's offloaded state (files or the host of a GPU) and the memory that masters
// and gradients pass through.
#pragma once

#include <memory>

#include "engine/storage/file_window.h"
#include "engine/storage/host_link.h"
#include "sharding/memory/buffer_plan.h"
#include "sharding/memory/host_transfers.h"
#include "sharding/policy/options.h"

namespace tessera {

// State whose member is null lies in the device's memory. `options` are OffloadOptions::on() the
// device.
struct OffloadFiles {
  // Reserves the files' space. Error(configuration) when the folder cannot be used or has no room.
  OffloadFiles(const OffloadOptions& options, const FileNeeds& needs, int rank, Device device);

  // Called by a runtime that ends, after its streams: no copy to or from the host is under way any
  // more, and parameters and gradients may keep the host's memory.
  void finish() noexcept;
  // Memory of the device that windows and other buffers take.
  [[nodiscard]] std::size_t held_bytes(MemoryKind kind) const;

  Device device;
  std::shared_ptr<StateFile> masters;    // its window serves steps
  std::unique_ptr<FileWindow> gathers;   // of the gather stream
  std::shared_ptr<StateFile> gradients;  // its window serves steps and the norm
  AlignedMemory reduced;                 // a unit's gradient on its way to the file
  std::shared_ptr<const StateFolder> moments;

  // On a GPU.
  std::shared_ptr<HostLink> host_link;           // for optimizers, when any state is on the host
  std::unique_ptr<ParameterUploads> uploads;     // of masters on the host
  std::unique_ptr<GradientDownloads> downloads;  // of gradients on the host

 private:
  void create_files(const OffloadOptions& options, int rank);
  void create_transfers(const OffloadOptions& options);

  [[nodiscard]] std::size_t link_window_bytes(const HostLink::Window* window) const;

  FileNeeds needs_;
  std::size_t piece_bytes_;
};

}  // namespace tessera
