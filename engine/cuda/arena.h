// A GPU's memory: one allocation, made at first use, that all pools of the process cut their blocks
// from. CUDA's own allocator waits for the whole device, so nothing calls it afterwards.
#pragma once

#include <mutex>

#include "engine/cuda/free_ranges.h"
#include "engine/memory.h"

namespace tessera::cuda {

// Blocks are 256-byte aligned. Thread-safe.
class Arena final : public MemorySource {
 public:
  // The size is read_settings()'. Throws Error(out_of_memory) when the device does not have it.
  explicit Arena(int device);
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::size_t granularity(std::size_t bytes) const override;
  [[nodiscard]] std::byte* take(std::size_t bytes) override;
  // Queues may still have work on the block: take() waits for the device before it hands out what
  // was given back.
  void give_back(std::byte* block, std::size_t bytes) override;
  // The same for a block that no queue has work on any more: nobody waits.
  void give_back_idle(std::byte* block, std::size_t bytes);
  [[nodiscard]] std::string shortage() const override;

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  const int device_;
  std::size_t bytes_ = 0;
  std::byte* base_ = nullptr;
  mutable std::mutex mutex_;
  FreeRanges free_{0};
  bool in_flight_ = false;  // something was given back since the device was last waited for
};

}  // namespace tessera::cuda
