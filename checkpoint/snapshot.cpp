// Copies of pieces, one after the other in one block.
#include "checkpoint/snapshot.h"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>

#include "engine/backend.h"
#include "engine/memory.h"
#include "engine/memory_kind.h"
#include "engine/offload/state_file.h"
#include "kernels/base/error.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

constexpr std::size_t piece_alignment = 64;

// The copy is far larger than any cache: written past them, its lines are not read first.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto* const out = reinterpret_cast<std::uint8_t*>(to);  // aligned to piece_alignment
  const auto* const in = reinterpret_cast<const std::uint8_t*>(from);
  std::size_t done = 0;
  for (; done + 4 * lanes <= bytes; done += 4 * lanes) {
    for (std::size_t k = 0; k < 4; ++k) {
      const std::size_t at = done + k * lanes;
      hn::Stream(hn::LoadU(d, in + at), d, out + at);
    }
  }
  hwy::FlushStream();
  std::memcpy(to + done, from + done, bytes - done);
}

// The dtype of a tensor's copy: the file's, where that is smaller and the processor makes it.
DType copied_dtype(const LogicalTensor& tensor, bool is_model, DType model_dtype) {
  const bool on_the_cpu = std::all_of(
      tensor.pieces.begin(), tensor.pieces.end(),
      [](const Piece& piece) { return !piece.file && piece.device.type == DeviceType::cpu; });
  const bool narrows = is_model && is_floating(tensor.dtype) && on_the_cpu &&
                       size_of(model_dtype) < size_of(tensor.dtype);
  return narrows ? model_dtype : tensor.dtype;
}

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
  } else {
    const std::shared_ptr<MemoryPool> pool = MemoryPool::current(device);
    std::shared_ptr<std::byte> block = backend_of(device.type).allocate_pinned(bytes);
    pool->count_host(MemoryKind::other, bytes);
    std::byte* const address = block.get();
    memory_ =
        std::shared_ptr<std::byte>(address, [pool, bytes, block = std::move(block)](std::byte*) {
          pool->uncount_host(MemoryKind::other, bytes);
        });
  }
  reserved_ = bytes;
}

State Snapshot::take(const State& state, Device device, DType model_dtype) {
  reserve(state, device);
  State copy = state;
  std::byte* next = memory_.get();
  std::set<StateFile*> held;
  for (auto* section : {&copy.model, &copy.optimizer}) {
    for (LogicalTensor& tensor : *section) {
      const DType from = tensor.dtype;
      tensor.dtype = copied_dtype(tensor, section == &copy.model, model_dtype);
      for (Piece& piece : tensor.pieces) {
        if (piece.file) {
          if (held.insert(piece.file.file.get()).second) {
            const std::lock_guard lock(holds_->mutex);
            holds_->of_files.push_back(piece.file.file->hold());
          }
          continue;
        }
        const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(tensor.dtype);
        if (tensor.dtype != from) {
          kernels::cpu::cast({.in = piece.data,
                              .out = next,
                              .n = piece.count,
                              .in_dtype = from,
                              .out_dtype = tensor.dtype});
        } else if (piece.device.type == DeviceType::cpu) {
          copy_past_caches(next, piece.data, bytes);
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
