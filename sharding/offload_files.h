// A rank's files of offloaded state, and the memory that masters and gradients pass through.
#pragma once

#include <memory>

#include "engine/offload/file_window.h"
#include "engine/tensor.h"
#include "sharding/buffer_plan.h"
#include "sharding/options.h"

namespace tessera {

// What is null lies in memory.
struct OffloadFiles {
  // Reserves the files' space. Error(configuration) where the folder cannot be used or has no room.
  OffloadFiles(const OffloadOptions& options, const FileNeeds& needs, int rank, Device device);

  // A tensor over the next bytes of the file, or of new memory; zeros.
  [[nodiscard]] Tensor make_gradient(std::int64_t elements, DType dtype) const;
  // Memory that windows and the like take.
  [[nodiscard]] std::size_t held_bytes(MemoryKind kind) const;

  Device device;
  std::shared_ptr<StateFile> masters;    // whose window is that of steps
  std::unique_ptr<FileWindow> gathers;   // that of the gather stream
  std::shared_ptr<StateFile> gradients;  // whose window is that of steps and of the norm
  AlignedMemory reduced;                 // a unit's gradient on its way to the file
  std::shared_ptr<const StateFolder> moments;

 private:
  FileNeeds needs_;
  std::size_t piece_bytes_;
};

}  // namespace tessera
