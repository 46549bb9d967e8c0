// How much collective memory a rank holds.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "comm/communicator.h"

namespace tessera::comm {

// The bytes of all communicators of a rank. Thread-safe.
class HeldMemory {
 public:
  [[nodiscard]] std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class HeldBlock;
  std::atomic<std::size_t> bytes_{0};
};

// Counts a block for its lifetime.
class HeldBlock {
 public:
  HeldBlock() = default;
  HeldBlock(std::shared_ptr<HeldMemory> memory, std::size_t bytes)
      : memory_(std::move(memory)), bytes_(bytes) {
    memory_->bytes_.fetch_add(bytes_, std::memory_order_relaxed);
  }
  HeldBlock(HeldBlock&& other) noexcept
      : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
  HeldBlock& operator=(HeldBlock&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HeldBlock() {
    if (memory_) memory_->bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
  }
  HeldBlock(const HeldBlock&) = delete;
  HeldBlock& operator=(const HeldBlock&) = delete;

 private:
  std::shared_ptr<HeldMemory> memory_;
  std::size_t bytes_ = 0;
};

// The bytes that a rank holds of a buffer of `bytes` that `ranks` ranks see in one memory: of a
// one_copy buffer an equal part, rounded up.
inline std::size_t share_of_buffer(std::size_t bytes, Sharing sharing, int ranks) {
  const auto parts = static_cast<std::size_t>(sharing == Sharing::one_copy ? ranks : 1);
  return (bytes + parts - 1) / parts;
}

}  // namespace tessera::comm
