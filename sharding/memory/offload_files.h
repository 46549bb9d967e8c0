// Where a rank's offloaded state lies, files or the host of a GPU, and the memory that masters and
// gradients pass through.
#pragma once

#include <memory>

#include "engine/storage/file_window.h"
#include "engine/storage/host_link.h"
#include "engine/tensor.h"
#include "sharding/memory/buffer_plan.h"
#include "sharding/memory/host_transfers.h"
#include "sharding/policy/options.h"

namespace tessera {

// What is null lies in the device's memory. `options` are OffloadOptions::on() the device.
struct OffloadFiles {
  // Reserves the files' space. Error(configuration) where the folder cannot be used or has no room.
  OffloadFiles(const OffloadOptions& options, const FileNeeds& needs, int rank, Device device);

  // A tensor over the next bytes of the file, or of new memory, the host's or the device's; zeros.
  [[nodiscard]] Tensor make_gradient(std::int64_t elements, DType dtype) const;
  // Of a runtime that ends, when its streams have: nothing is on its way to or from the host any
  // more, whose memory parameters and gradients may keep.
  void finish() noexcept;
  // Memory of the device that windows and the like take.
  [[nodiscard]] std::size_t held_bytes(MemoryKind kind) const;

  Device device;
  std::shared_ptr<StateFile> masters;    // whose window is that of steps
  std::unique_ptr<FileWindow> gathers;   // that of the gather stream
  std::shared_ptr<StateFile> gradients;  // whose window is that of steps and of the norm
  AlignedMemory reduced;                 // a unit's gradient on its way to the file
  std::shared_ptr<const StateFolder> moments;

  // On a GPU.
  std::shared_ptr<HostLink> host_link;           // that optimizers go by, where anything is there
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
