// Copies of pieces, one after the other in one block.
#include "checkpoint/state/snapshot.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "engine/device/backend.h"
#include "engine/device/memory.h"
#include "engine/device/memory_kind.h"
#include "engine/storage/state_file.h"
#include "kernels/registry.h"

namespace tessera::checkpoint {
namespace {

constexpr std::size_t piece_alignment = 64;

// Distance of the prefetch before the copy. A prefetch past the end of the memory has no effect.
constexpr std::size_t bytes_ahead = 512;

// Bytes that a thread copies at a time.
constexpr std::size_t block_bytes = std::size_t{4} << 20;

// The copy is far larger than any cache. Non-temporal stores avoid reading its lines first. Every
// x86-64 processor has these instructions; wider ones are not faster, because memory bandwidth is
// the limit.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::size_t done = 0;
#if defined(__SSE2__)
  constexpr std::size_t line = 64;  // of a cache; `to` begins one
  for (; done + line <= bytes; done += line) {
    _mm_prefetch(reinterpret_cast<const char*>(from + done + bytes_ahead), _MM_HINT_T0);
    const auto* const in = reinterpret_cast<const __m128i*>(from + done);
    auto* const out = reinterpret_cast<__m128i*>(to + done);
    const __m128i first = _mm_loadu_si128(in), second = _mm_loadu_si128(in + 1);
    const __m128i third = _mm_loadu_si128(in + 2), fourth = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, first);
    _mm_stream_si128(out + 1, second);
    _mm_stream_si128(out + 2, third);
    _mm_stream_si128(out + 3, fourth);
  }
  _mm_sfence();
#endif
  std::memcpy(to + done, from + done, bytes - done);
}

struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

// Uses all of the rank's threads: one thread does not use the whole memory bandwidth.
void copy_all(const std::vector<Copy>& copies) {
  std::vector<Copy> blocks;
  for (const Copy& copy : copies) {
    for (std::size_t done = 0; done < copy.bytes; done += block_bytes) {
      blocks.push_back(
          {copy.to + done, copy.from + done, std::min(block_bytes, copy.bytes - done)});
    }
  }
  parallel_for(0, static_cast<std::int64_t>(blocks.size()), 1,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const Copy& block = blocks[static_cast<std::size_t>(i)];
                   copy_past_caches(block.to, block.from, block.bytes);
                 }
               });
}

// The dtype of a tensor's copy: the file's if it is smaller and the CPU makes the copy.
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
  std::vector<Copy> copies;
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
          copies.push_back({next, piece.data, bytes});
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
  copy_all(copies);
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
