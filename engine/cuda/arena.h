// A GPU's memory: one allocation, made at first use, from which all pools of the process take their
// blocks. CUDA's own allocator waits for the whole device, so it is not called afterwards.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/cuda/point.h"
#include "engine/device/memory.h"
#include "engine/places/free_ranges.h"

namespace tessera::cuda {

class QueueContext;

// Blocks are 256-byte aligned. Thread-safe.
class Arena final : public MemorySource {
 public:
  // The size comes from read_settings(). Throws Error(out_of_memory) if the device has less.
  explicit Arena(int device);
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::size_t granularity(std::size_t bytes) const override;
  [[nodiscard]] std::byte* take(std::size_t bytes) override;
  // Queues may still have work on the block. It is reused when they have finished their present
  // work: take() prefers idle blocks, and waits only if those are not enough.
  void give_back(std::byte* block, std::size_t bytes) override;
  // Like give_back(), for a block on which no queue has work; it can be reused at once.
  void give_back_idle(std::byte* block, std::size_t bytes);
  // Blocks that were given back but may still be in use count as taken.
  [[nodiscard]] Taken taken() const override;
  [[nodiscard]] std::string shortage() const override;

  // Registers the queues whose work on blocks must finish first, from their creation to their end.
  void add(const QueueContext& queue);
  void remove(const QueueContext& queue);

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  // The ends of the work that the queues had when a block was given back.
  using Uses = std::vector<std::shared_ptr<const Point>>;
  struct InFlight {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::shared_ptr<const Uses> uses;
  };

  [[nodiscard]] std::shared_ptr<const Uses> uses_now() const;
  void take_back_what_is_idle();

  const int device_;
  std::size_t bytes_ = 0;
  std::byte* base_ = nullptr;
  mutable std::mutex mutex_;
  FreeRanges free_{0};
  std::size_t peak_taken_ = 0;
  std::vector<const QueueContext*> queues_;
  std::list<InFlight> in_flight_;  // in the order in which they were given back
};

}  // namespace tessera::cuda
