// Making the files.
#include "sharding/offload_files.h"

#include <fmt/format.h>

#include "engine/memory.h"
#include "engine/memory_kind.h"

namespace tessera {
OffloadFiles::OffloadFiles(const OffloadOptions& options, const FileNeeds& needs, int rank,
                           Device rank_device)
    : device(rank_device), needs_(needs), piece_bytes_(options.piece_bytes) {
  if (!options.uses_files()) return;
  const StateFolder folder{options.folder, fmt::format("rank {}", rank), device,
                           options.piece_bytes, options.direct};
  if (options.parameters == Placement::file && needs.masters > 0) {
    masters = std::make_shared<StateFile>(folder, "the master parameters", MemoryKind::parameters,
                                          needs.masters);
    masters->make_window(needs.largest_master);
    gathers = std::make_unique<FileWindow>(*masters, needs.largest_master);
  }
  if (options.gradients == Placement::file && needs.gradients > 0) {
    gradients = std::make_shared<StateFile>(folder, "the gradients", MemoryKind::gradients,
                                            needs.gradients);
    gradients->make_window(needs.largest_gradient);
    reduced = AlignedMemory(needs.largest_gradient, MemoryKind::gradients, device);
  }
  if (options.optimizer == Placement::file) moments = std::make_shared<StateFolder>(folder);
}

Tensor OffloadFiles::make_gradient(std::int64_t elements, DType dtype) const {
  if (!gradients) {
    const MemoryScope kind(MemoryKind::gradients);
    return Tensor::zeros({elements}, dtype, device);
  }
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(dtype);
  return Tensor::view_of(Storage::in_file(gradients, bytes), 0, {elements}, dtype);
}

std::size_t OffloadFiles::held_bytes(MemoryKind kind) const {
  if (kind == MemoryKind::parameters && masters) {
    return 2 * FileWindow::bytes(piece_bytes_, needs_.largest_master);
  }
  if (kind == MemoryKind::gradients && gradients) {
    return FileWindow::bytes(piece_bytes_, needs_.largest_gradient) +
           AlignedMemory::bytes(needs_.largest_gradient);
  }
  return 0;
}

}  // namespace tessera
