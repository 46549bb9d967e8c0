// Lays out, fills and guards shared memory.
#include "emulator/scheduler/shared_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "emulator/scheduler/sanitizers.h"

namespace tessera::emulator {
namespace {

constexpr std::size_t piece_alignment = 128;
constexpr std::size_t gap = 128;
constexpr std::size_t most_pieces = 65;
constexpr unsigned char unwritten = 0xff;
// Room to round each piece to the alignment, and a gap after each.
constexpr std::size_t capacity = SharedMemory::most + most_pieces * (piece_alignment + gap);
constexpr std::size_t ordering_bytes = 8;  // the thread sanitizer's grain

constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + piece_alignment - 1) / piece_alignment * piece_alignment;
}

// The first thread that names a variable fills it, but that is not a write in CUDA's sense: the
// thread sanitizer, which watches memset, must not see it.
void fill(std::byte* memory, std::size_t bytes) {
  if constexpr (sanitizer::thread) {
    auto* unseen = reinterpret_cast<volatile unsigned char*>(memory);
    for (std::size_t i = 0; i < bytes; ++i) unseen[i] = unwritten;
  } else {
    std::memset(memory, unwritten, bytes);
  }
}

}  // namespace

SharedMemory::SharedMemory() {
  pieces_.reserve(most_pieces);
  if constexpr (!sanitizer::thread) take_memory();
}

SharedMemory::~SharedMemory() {
  sanitizer::allow(memory_, capacity);
  std::free(memory_);
}

void SharedMemory::take_memory() {
  memory_ = static_cast<std::byte*>(std::aligned_alloc(
      piece_alignment, round_up(capacity + SharedMemory::orderings * ordering_bytes)));
  if (memory_ == nullptr) throw std::bad_alloc();
}

void SharedMemory::begin_block(std::size_t dynamic_bytes) {
  // For the thread sanitizer every block has memory of its own: blocks are not ordered with each
  // other, and must not seem to share memory that they use in turn.
  if constexpr (sanitizer::thread) take_memory();
  sanitizer::forbid(memory_, capacity);
  pieces_.clear();
  used_ = 0;
  variable_bytes_ = 0;
  add(nullptr, dynamic_bytes);
}

void SharedMemory::end_block() {
  if constexpr (sanitizer::thread) {
    std::free(memory_);
    memory_ = nullptr;
  }
}

std::byte* SharedMemory::add(const void* key, std::size_t bytes) {
  std::byte* piece = memory_ + used_;
  const std::size_t room = round_up(bytes) + gap;
  sanitizer::allow(piece, room);
  fill(piece, room);
  sanitizer::forbid(piece + bytes, room - bytes);
  pieces_.push_back({key, used_, bytes});
  used_ += room;
  return piece;
}

std::byte* SharedMemory::variable(const void* key, std::size_t bytes) {
  for (std::size_t i = 1; i < pieces_.size(); ++i) {
    if (pieces_[i].key == key) return memory_ + pieces_[i].offset;
  }
  variable_bytes_ += bytes;
  if (variable_bytes_ > most_for_variables || variable_bytes_ + pieces_[0].bytes > most ||
      pieces_.size() == most_pieces) {
    return nullptr;
  }
  return add(key, bytes);
}

bool SharedMemory::contains(const void* address, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(memory_);
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
    return begin >= base + piece.offset && begin + bytes <= base + piece.offset + piece.bytes;
  });
}

void* SharedMemory::ordering(unsigned index) const {
  return memory_ + capacity + index * ordering_bytes;
}

const char* SharedMemory::check_gaps() const {
  // The address sanitizer has already reported any access, and forbids this one.
  if constexpr (sanitizer::address) return nullptr;
  for (const Piece& piece : pieces_) {
    const std::byte* end = memory_ + piece.offset + piece.bytes;
    const std::byte* next = memory_ + piece.offset + round_up(piece.bytes) + gap;
    const bool clean =
        std::all_of(end, next, [](std::byte byte) { return byte == std::byte{unwritten}; });
    if (!clean) {
      return piece.key == nullptr ? "the block has written beyond its dynamic shared memory"
                                  : "the block has written beyond a shared variable";
    }
  }
  return nullptr;
}

}  // namespace tessera::emulator
