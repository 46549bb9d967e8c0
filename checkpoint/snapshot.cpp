// Copies of pieces, one after the other in one block.
#include "checkpoint/snapshot.h"

#include <cstring>
#include <set>

#include "engine/backend.h"
#include "engine/memory.h"
#include "engine/memory_kind.h"
#include "engine/offload/state_file.h"
#include "kernels/base/error.h"

namespace tessera::checkpoint {
namespace {

constexpr std::size_t piece_alignment = 64;

std::size_t place_bytes(const Piece& piece, DType dtype) {
  if (piece.file) return 0;
  const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(dtype);
  return (bytes + piece_alignment - 1) / piece_alignment * piece_alignment;
}

}  // namespace

std::size_t Snapshot::bytes_of(const State& state) {
  std::size_t bytes = 0;
  for (const auto* section : {&state.model, &state.optimizer}) {
    for (const LogicalTensor& tensor : *section) {
      for (const Piece& piece : tensor.pieces) bytes += place_bytes(piece, tensor.dtype);
    }
  }
  return bytes;
}

void Snapshot::reserve(const State& state, Device device) {
  const std::size_t bytes = bytes_of(state);
  if (bytes <= reserved_) return;
  memory_.reset();
  if (device.stands_for() == DeviceType::cpu) {
    const MemoryScope kind(MemoryKind::other);
    memory_ = MemoryPool::current(device)->allocate(bytes);
  } else if (!device.is_planned()) {  // no plan counts the host's memory beside a GPU
    memory_ = backend_of(device.type).allocate_pinned(bytes);
  }
  reserved_ = bytes;
}

State Snapshot::take(const State& state, Device device) {
  reserve(state, device);
  State copy = state;
  std::byte* next = memory_.get();
  std::set<StateFile*> held;
  for (auto* section : {&copy.model, &copy.optimizer}) {
    for (LogicalTensor& tensor : *section) {
      for (Piece& piece : tensor.pieces) {
        if (piece.file) {
          if (held.insert(piece.file.file.get()).second) {
            const std::lock_guard lock(holds_->mutex);
            holds_->of_files.push_back(piece.file.file->hold());
          }
          continue;
        }
        const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(tensor.dtype);
        if (piece.device.type == DeviceType::cpu) {
          std::memcpy(next, piece.data, bytes);
        } else {
          current_queue(piece.device).enqueue_copy_to_pinned(next, piece.data, bytes);
        }
        const std::size_t taken = place_bytes(piece, tensor.dtype);
        piece.data = next;
        piece.device = Device::cpu();
        next += taken;
      }
    }
  }
  copied_ = device.type == DeviceType::cpu ? nullptr : current_queue(device).record();
  return copy;
}

void Snapshot::await() const {
  if (copied_) copied_->synchronize();
}

std::function<void()> Snapshot::release() const {
  return [holds = holds_] {
    const std::lock_guard lock(holds->mutex);
    holds->of_files.clear();
  };
}

}  // namespace tessera::checkpoint
